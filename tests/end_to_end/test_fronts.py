"""`serve --shard-hosts`: servers whose tables lie on shard hosts, all of them processes."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sharded_infer.artifacts.manifest import blocks_name
from sharded_infer.lookups.placement import place_stored, share_of
from sharded_infer.repositories.repository import Repository
from sharded_infer.repositories.storage.version_cache import VersionCache
from sharded_infer.repositories.version_copy import copy_version
from tests.support.fronts import (
    SECONDS,
    all_are_answered,
    check,
    code_of,
    hosts_file,
    infer,
    is_of,
    running_front,
    running_hosts,
)
from tests.support.s3_server import S3Server
from tests.support.server_pages import counted
from tests.support.servers import (
    MODEL,
    Command,
    Ranker,
    RunningServer,
    check_bits,
    good_inputs,
    publish_ranker,
    run,
    running_server,
)
from tests.support.shard_host_processes import publish_for_hosts
from tests.support.tls import issue_files
from tests.support.waiting import until

HOSTS = 3
# Host 0 is the front's; the item table is larger than any rank.
RANK_BYTES = 1400
TOKEN = "front-0123456789abcdef"  # noqa: S105


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Ranker:
    return publish_for_hosts(tmp_path_factory.mktemp("fronts"), HOSTS, RANK_BYTES)


def lost(front: RunningServer, host: int, code: str) -> float:
    """Lookups of a host that failed their batch."""
    return counted(front, "sharded_infer_shard_lost_lookups_total", code=code, host=str(host))


@pytest.mark.parametrize(("own", "workers"), [(False, 1), (True, 2)])
def test_a_front_answers_with_the_bits_of_a_server_that_holds_all_tables(
    published: Ranker, tmp_path: Path, own: bool, workers: int
) -> None:
    numbers = (1, 2) if own else (0, 1, 2)
    with (
        running_hosts(published.repository, tmp_path, numbers) as hosts,
        running_front(published.repository, tmp_path, hosts, "--workers", workers) as front,
        running_server(published.repository, tmp_path / "whole") as whole,
    ):
        for seed in range(10):
            inputs = good_inputs(1 + 3 * seed, seed)
            check_bits(infer(front, inputs), infer(whole, inputs))
        with ThreadPoolExecutor(8) as clients:
            for done in [clients.submit(check, front, published, 3, seed) for seed in range(100)]:
                done.result(SECONDS)


def test_a_plan_that_names_its_front_is_served(tmp_path: Path) -> None:
    topology = tmp_path / "front.toml"
    rank = '[[devices]]\nhost = {}\nmemory = "{}KB"\n'
    topology.write_text("[front]\nhost = 0\n" + rank.format(0, 1.5) + rank.format(1, 2))
    published = publish_ranker(tmp_path / "repository", topology=str(topology))
    artifact = Repository(published.repository).open(MODEL, 1)
    tables = {
        host: {
            piece.table.name for piece in share_of(place_stored(artifact.plan(), artifact), host)
        }
        for host in (0, 1)
    }
    # The item table has no room, and the others have.
    assert tables == {0: {"user", "category", "brand"}, 1: {"item"}}
    with (
        running_hosts(published.repository, tmp_path, (1,)) as hosts,
        running_front(published.repository, tmp_path, hosts) as front,
    ):
        for seed in range(5):
            check(front, published, 1 + 3 * seed, seed)


@pytest.mark.parametrize("own", [False, True])
def test_a_front_asks_a_bucket_for_no_rows_but_its_own(
    published: Ranker, s3: S3Server, s3_url: str, tmp_path: Path, own: bool
) -> None:
    folder = Repository(published.repository)
    copy_version(folder, MODEL, 1, Repository(s3_url, VersionCache(tmp_path / "publisher")))
    artifact = folder.open(MODEL, 1)
    plan, manifest = artifact.plan(), artifact.manifest
    mine = {piece.file for piece in share_of(place_stored(plan, artifact), 0 if own else None)}
    with running_hosts(published.repository, tmp_path, (1, 2) if own else (0, 1, 2)) as hosts:
        s3.requests.clear()
        with running_front(published.repository, tmp_path, hosts, "-r", s3_url) as front:
            check(front, published, 5)
    got = " ".join(path for method, path, _ in s3.requests if method == "GET")
    asked = {name for name, record in manifest.files.items() if record.sha256 in got}
    others = manifest.table_files - mine
    assert asked == set(manifest.files) - others - {blocks_name(name) for name in others}


def test_a_stopped_host_costs_the_lookups_time_and_no_more(
    published: Ranker, tmp_path: Path
) -> None:
    # Long enough for the busiest machine to load with, and shorter than the call's own time.
    seconds = "timeout_ms = 5000"
    with (
        running_hosts(published.repository, tmp_path, (0, 1, 2)) as hosts,
        running_front(published.repository, tmp_path, hosts, more=seconds) as front,
    ):
        os.kill(hosts[1].process.pid, signal.SIGSTOP)
        try:
            code, words = code_of(front)
        finally:
            os.kill(hosts[1].process.pid, signal.SIGCONT)
        assert code == "DEADLINE_EXCEEDED" and "shard host 1 at" in words
        until(lambda: lost(front, 1, "DEADLINE_EXCEEDED") > 0, "the lost lookup is counted")
        assert lost(front, 1, "UNAVAILABLE") == 0
        until(lambda: all_are_answered(front), "it goes on")


def test_a_front_moves_to_a_version_when_all_its_hosts_have_it(tmp_path: Path) -> None:
    first = publish_for_hosts(tmp_path, HOSTS, RANK_BYTES)
    quick = ("--poll-seconds", 0.1)
    with (
        running_hosts(first.repository, tmp_path, (0, 1), *quick) as some,
        # It reads the repository when it is told to.
        running_hosts(first.repository, tmp_path, (2,), "--poll-seconds", 0) as last,
        running_front(first.repository, tmp_path, {**some, **last}, *quick) as front,
    ):
        second = publish_for_hosts(tmp_path, HOSTS, RANK_BYTES, seed=6)
        failed = "sharded_infer_version_load_failures_total"
        until(lambda: counted(front, failed, phase="hosts") > 1, "it waits for the last host")
        check(front, first, 5)
        last[2].process.send_signal(signal.SIGHUP)
        until(lambda: is_of(front, second), "it moves")
        check(front, second, 5)


def test_a_front_shows_its_hosts_a_certificate_and_a_token(
    published: Ranker, tmp_path: Path
) -> None:
    files = issue_files(tmp_path)
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{TOKEN} predict\n")
    tokens.chmod(0o600)
    (tmp_path / "token").write_text(TOKEN)
    options = (*files.options(), "--tls-client-ca", files.ca, "--tokens-file", tokens)
    names = [path.name for path in (files.ca, files.certificate, files.key)]
    tls = 'tls = {{ca = "{}", certificate = "{}", key = "{}"}}'.format(*names)
    with running_hosts(published.repository, tmp_path, (0, 1, 2), *options) as hosts:
        with running_front(
            published.repository, tmp_path, hosts, more=f'token_file = "token"\n{tls}'
        ) as front:
            check(front, published, 4)
        (tmp_path / "token.other").write_text(f"{TOKEN[:-1]}X")
        alone = f'tls = {{ca = "{names[0]}"}}'
        for more, words in (
            (tls, "expected the header authorization: Bearer TOKEN, got none"),
            (f'token_file = "token.other"\n{tls}', "shard host 0 at"),
            (f'token_file = "token"\n{alone}', "shard host 0 at"),
            ('token_file = "token"', "shard host 0 at"),
        ):
            file = hosts_file(tmp_path, hosts, more)
            done = run("serve", "-r", published.repository, "--port", 0, "--shard-hosts", file)
            assert done.returncode == 1 and words in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "hosts: Field required"),
        ("[hosts]\n", "hosts: expected at least one, got none"),
        ("[hosts]\n1 = 5\n", "hosts.1: expected an address or a list of addresses, got 5"),
        ("[hosts]\n1 = []\n", "hosts.1: expected at least one address, got none"),
        ("[hosts]\n1 = ['a:1', 'a:1']\n", "hosts.1: expected different addresses"),
        ("[hosts]\n1 = ['a:1', 'b']\n", "expected HOST:PORT or unix:PATH, got 'b'"),
        ("[hosts]\none = 'a:1'\n", "hosts.one"),
        ("[hosts]\n1 = 'nowhere'\n", "expected HOST:PORT or unix:PATH, got 'nowhere'"),
        ("speed = 1\n[hosts]\n1 = 'a:1'\n", "speed: Unexpected"),
        ("timeout_ms = 0\n[hosts]\n1 = 'a:1'\n", "timeout_ms: Input should be greater than 0"),
        ("token_file = 'none'\n[hosts]\n1 = 'a:1'\n", "none: cannot be read"),
        ("[hosts]\n2 = '127.0.0.1:9'\n", "names no address of hosts 0, 1"),
        ("[hosts]\n1 = 'a:1'\n[tls]\nca = 'c'\nkey = 'k'\n", "expected both or neither"),
    ],
)
def test_a_wrong_hosts_file_is_refused_by_its_field(
    published: Ranker, tmp_path: Path, sharded_infer: Command, text: str, words: str
) -> None:
    file = tmp_path / "hosts.toml"
    file.write_text(text)
    command = ("serve", "-r", published.repository, "--port", 0, "--shard-hosts", file)
    sharded_infer(*command).refused(words)
