import re
from pathlib import Path

import pytest

from serving.cluster.cluster_file import read_cluster
from sharded_infer.errors import InputError

SMALL = """
name = "ranker"
repository = "models"

[fronts]
memory = "20GB"
security = { insecure = true }

[shard_hosts]
security = { insecure = true }

[hosts.1]
memory = "200GB"
"""


def written(folder: Path, text: str) -> Path:
    file = folder / "cluster.toml"
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('name = "ranker"\n', "", "name: Field required"),
        ('"ranker"', '"Ranker"', "name: expected 1 to 40 of a-z, 0-9 and -, a letter first, got"),
        ('"20GB"', '"20"', "fronts.memory: expected a size such as '70GB', got '20'"),
        ('"20GB"', "20", "fronts.memory: expected a size such as '70GB', got 20"),
        ('memory = "200GB"', "replicas = 2", "hosts.1.memory: Field required"),
        ('"200GB"', '"1GB"\nreplicas = 0', "hosts.1.replicas: Input should be greater than or"),
        ('"200GB"', '"1GB"\nnodes = 2', "hosts.1.nodes: Unexpected keyword argument, got 2"),
        ("[hosts.1]", "[hosts.one]", "hosts.one: Input should be a valid integer"),
        ("insecure = true", "", "security: others reach these addresses: expected tls_certif"),
        (
            "insecure = true",
            'tls_certificate = "a"',
            "tls_certificate and tls_key: expected both or neither, got one",
        ),
        (
            '"20GB"',
            '"20GB"\nsettings = { max_bach = 1 }',
            "fronts.settings.max_bach: expected a setting of the command, got none; did you mean "
            "'max_batch'?",
        ),
        (
            '"20GB"',
            '"20GB"\nsettings = { max_batch = "many" }',
            "fronts.settings): expected a whole number from 1 to 2147483647, got 'many'",
        ),
        (
            "[shard_hosts]",
            "[shard_hosts]\nsettings = { workers = 2 }",
            "shard_hosts.settings.workers: expected a setting of the command",
        ),
        (
            "[shard_hosts]",
            "[shard_hosts]\nsettings = { port = 2 }",
            "shard_hosts.settings.port: other fields of this file say it",
        ),
        (
            "[shard_hosts]",
            '[lookups]\ntls = { ca = "a", key = "b" }\n[shard_hosts]',
            "lookups.tls.certificate and key: expected both or neither, got one",
        ),
        (
            "[shard_hosts]",
            '[lookups]\ntls = { ca = "a" }\n[shard_hosts]',
            "lookups.tls and shard_hosts.security.tls_certificate: expected both or neither",
        ),
        (
            "[shard_hosts]\nsecurity = { insecure = true }",
            '[shard_hosts]\nsecurity = { tokens_file = "a" }',
            "lookups.token_file: expected the token that shard_hosts.security.tokens_file asks",
        ),
        ("[hosts.1]", "[hosts.1", "not TOML"),
    ],
)
def test_what_is_wrong_is_named_with_what_was_expected(
    old: str, new: str, words: str, tmp_path: Path
) -> None:
    assert old in SMALL
    with pytest.raises(InputError, match=re.escape(words)) as refused:
        read_cluster(written(tmp_path, SMALL.replace(old, new, 1)))
    assert str(tmp_path / "cluster.toml") in str(refused.value)


def test_a_cluster_without_shard_hosts_is_refused(tmp_path: Path) -> None:
    text = SMALL.partition("[hosts.1]")[0] + "[hosts]\n"
    with pytest.raises(InputError, match="hosts: .*at least 1"):
        read_cluster(written(tmp_path, text))


def test_trusted_keys_are_files_of_the_cluster_and_protect_no_address(tmp_path: Path) -> None:
    secured = SMALL.replace("insecure = true", 'insecure = true, trusted_key = "keys.pem"')
    cluster = read_cluster(written(tmp_path, secured))
    assert cluster.fronts.security.files == {"trusted_key": "keys.pem"}
    assert cluster.shard_hosts.security.files == {"trusted_key": "keys.pem"}
    with pytest.raises(InputError, match="security: others reach these addresses"):
        read_cluster(written(tmp_path, secured.replace("insecure = true, ", "")))
