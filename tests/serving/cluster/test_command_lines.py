from pathlib import Path
from typing import Any

import pytest

from serving.cluster.cluster_file import ClusterFile, read_cluster
from serving.cluster.command_lines import hosts_text, process_command
from serving.remote_lookups.hosts_file import HostsTls, read_hosts
from tests.support.servers import Command

PLAIN = """
name = "ranker"
repository = "s3://bucket/models"
topology = "three"
models = ["dlrm", "other"]

[fronts]
memory = "20GB"
cpus = 4
security = { tokens_file = "tokens" }
settings = { max_connection_age = 60, workers = 2, shared_memory = false }

[shard_hosts]
security = { tokens_file = "tokens" }
settings = { drain_seconds = 5, slots = 3 }

[hosts.1]
replicas = 2
memory = "200GB"

[hosts.2]
memory = "100GiB"
cpus = 0.5

[lookups]
timeout_ms = 200
token_file = "token"
"""
SECURE = """
name = "r"
repository = "models"

[fronts]
memory = "20GB"
port = 9001
http_port = 9002
security = { tls_certificate = "front/front.pem", tls_key = "front/front.key" }

[shard_hosts]
port = 9003
[shard_hosts.security]
tls_certificate = "host/host.pem"
tls_key = "host/host.key"
tls_client_ca = "ca.pem"
trusted_key = "keys.pem"

[hosts.0]
memory = "1GB"

[lookups.tls]
ca = "ca.pem"
certificate = "front/front.pem"
key = "front/front.key"
"""
ADDRESS, HOSTS_FILE = "10.0.0.2", Path("/run/hosts.toml")


@pytest.fixture
def plain(tmp_path: Path) -> ClusterFile:
    return cluster_of(PLAIN, tmp_path)


@pytest.fixture
def secure(tmp_path: Path) -> ClusterFile:
    return cluster_of(SECURE, tmp_path)


def cluster_of(text: str, folder: Path) -> ClusterFile:
    file = folder / "cluster.toml"
    file.write_text(text)
    return read_cluster(file)


def taken(words: list[str], command: Command) -> dict[str, Any]:
    settings = command(*words, "--print-config").json()
    return {name: said["value"] for name, said in settings.items()}


def test_settings_of_the_file_arrive(
    plain: ClusterFile, tmp_path: Path, sharded_infer: Command
) -> None:
    front = taken(process_command(plain, None, HOSTS_FILE, tmp_path, ADDRESS), sharded_infer)
    host = taken(process_command(plain, 1, HOSTS_FILE, tmp_path, ADDRESS), sharded_infer)
    for one in (front, host):
        assert (one["host"], one["port"], one["http_port"]) == (ADDRESS, 0, 0)
        assert one["repository"] == "s3://bucket/models"
        assert (one["model"], one["topology"]) == (["dlrm", "other"], "three")
        assert one["tokens_file"] == str(tmp_path / "tokens") and not one["insecure"]
    assert front["shard_hosts"] == str(HOSTS_FILE)
    assert (front["max_connection_age"], front["shared_memory"]) == (60, False)
    assert host["drain_seconds"] == 5


def test_a_process_runs_as_many_batches_as_it_has_processors(
    plain: ClusterFile, secure: ClusterFile, tmp_path: Path, sharded_infer: Command
) -> None:
    front = taken(process_command(plain, None, HOSTS_FILE, tmp_path, ADDRESS), sharded_infer)
    assert (front["workers"], front["slots"]) == (2, 2)
    # What the file says holds; a part of a processor is one.
    for cluster, number, slots in ((plain, 1, 3), (secure, 0, 1)):
        words = process_command(cluster, number, HOSTS_FILE, tmp_path, ADDRESS)
        assert words[:2] == ["serve-shards", f"--host-number={number}"]
        assert taken(words, sharded_infer)["slots"] == slots


def test_files_are_relative_to_the_clusters(
    secure: ClusterFile, tmp_path: Path, sharded_infer: Command
) -> None:
    front = taken(process_command(secure, None, HOSTS_FILE, tmp_path, ADDRESS), sharded_infer)
    host = taken(process_command(secure, 0, HOSTS_FILE, tmp_path, ADDRESS), sharded_infer)
    assert (front["port"], front["http_port"], host["port"], host["http_port"]) == (
        *(9001, 9002),
        *(9003, 0),
    )
    assert front["repository"] == host["repository"] == str(tmp_path / "models")
    assert front["tls_key"] == str(tmp_path / "front/front.key") and not front["tls_client_ca"]
    assert host["tls_key"] == str(tmp_path / "host/host.key")
    assert host["tls_client_ca"] == str(tmp_path / "ca.pem")
    assert host["trusted_key"] == [str(tmp_path / "keys.pem")]


def test_fronts_read_the_hosts_file(
    plain: ClusterFile, secure: ClusterFile, tmp_path: Path
) -> None:
    file = tmp_path / "hosts.toml"
    file.write_text(hosts_text(plain, tmp_path, {2: ["c:3"], 1: ["a:1", "b:2"]}))
    hosts = read_hosts(file)
    assert hosts.hosts == {1: ("a:1", "b:2"), 2: ("c:3",)} and hosts.tls is None
    assert (hosts.timeout_ms, hosts.token_file) == (200, str(tmp_path / "token"))
    file.write_text(hosts_text(secure, tmp_path, {0: ["a:1"]}))
    hosts = read_hosts(file)
    names = ("ca.pem", "front/front.pem", "front/front.key")
    assert hosts.tls == HostsTls(*(str(tmp_path / name) for name in names))
    assert hosts.hosts == {0: ("a:1",)} and hosts.token_file is None
