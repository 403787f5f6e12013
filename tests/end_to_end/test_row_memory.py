"""Servers whose rows lie on the disk but for a few: the scores of memory, and coded errors."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sharded_infer.artifacts.artifact import open_artifact
from tests.support.fronts import check, code_of, running_front, running_hosts
from tests.support.servers import Ranker, RunningServer, publish_ranker, running_server
from tests.support.shard_host_processes import publish_for_hosts

NONE = ("--row-memory-mib", 0)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Ranker:
    return publish_ranker(tmp_path_factory.mktemp("stored") / "repository")


@pytest.fixture(scope="module")
def server(stored: Ranker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    log = tmp_path_factory.mktemp("server") / "log"
    with running_server(stored.repository, log, *NONE, "--workers", 2) as running:
        yield running


def test_answers_are_those_of_rows_in_memory(server: RunningServer, stored: Ranker) -> None:
    for seed in range(20):
        check(server, stored, 8, seed)


def test_rows_that_are_lost_are_an_error_until_they_are_there_again(
    server: RunningServer, stored: Ranker
) -> None:
    path = stored.model.artifact.path
    manifest = open_artifact(path).manifest
    files = [path / piece.file for table in manifest.tables for piece in table.pieces]
    contents = {file: file.read_bytes() for file in files}
    try:
        for file in files:
            file.write_bytes(b"")
        code, words = code_of(server)
        assert code.endswith("UNAVAILABLE")
        assert "cannot be read" in words and "table '" in words
    finally:
        for file, content in contents.items():
            file.write_bytes(content)
    check(server, stored, 8)


def test_a_front_and_its_hosts_read_their_own_rows(tmp_path: Path) -> None:
    ranker = publish_for_hosts(tmp_path, 2, 6_000)
    with (
        running_hosts(ranker, tmp_path, (1,), *NONE) as hosts,
        running_front(ranker, tmp_path, hosts, *NONE) as front,
    ):
        for seed in range(10):
            check(front, ranker, 8, seed)
