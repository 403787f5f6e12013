"""Servers whose rows lie on the disk but for a few: the scores of memory, and coded errors."""

from collections import defaultdict
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sharded_infer.artifacts.artifact import open_artifact
from tests.support.fronts import check, code_of
from tests.support.server_pages import page
from tests.support.servers import Ranker, RunningServer, publish_ranker, running_server
from tests.support.waiting import until

NONE = ("--row-memory-mib", 0)
FAILED = "sharded_infer_row_reads_failed"


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Ranker:
    return publish_ranker(tmp_path_factory.mktemp("stored") / "repository")


@pytest.fixture(scope="module")
def server(stored: Ranker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    log = tmp_path_factory.mktemp("server") / "log"
    with running_server(stored.repository, log, *NONE, "--workers", 2) as running:
        yield running


def sums(server: RunningServer) -> dict[str, dict[str, float]]:
    """By family: the values of its series by table, or by the end of their names."""
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for family in text_string_to_metric_families(page(server.metrics_url)):
        for sample in family.samples:
            kind = sample.labels.get("table", sample.name.removeprefix(family.name))
            found[family.name][kind] = found[family.name].get(kind, 0) + sample.value
    return found


def test_answers_are_those_of_rows_in_memory_and_the_page_says_where_rows_were_by_table(
    server: RunningServer, stored: Ranker
) -> None:
    tables = {table.name for table in stored.model.spec.tables}
    before = sums(server)
    failed = before[FAILED]
    for seed in range(20):
        check(server, stored, 8, seed)

    def all_told() -> bool:
        told = before["sharded_infer_ids_read"]
        read = sums(server)["sharded_infer_ids_read"]
        return set(read) == tables and all(read[name] > told[name] for name in tables)

    until(all_told, "each table's ids are counted")
    now = sums(server)
    for name in ("ids_pinned", "ids_cached", "row_memory_bytes"):
        assert now[f"sharded_infer_{name}"] == dict.fromkeys(tables, 0.0)
    assert now[FAILED] == failed
    reads, read_bytes = now["sharded_infer_row_reads"], now["sharded_infer_row_read_bytes"]
    # Files of few rows are shorter than a block.
    assert all(read_bytes[name] > reads[name] > 0 for name in tables)
    seconds = now["sharded_infer_row_read_seconds"]
    assert sum(reads.values()) == seconds["_count"] and seconds["_sum"] > 0
    assert now["sharded_infer_row_reads_queued"] == {"": 0.0}
    # Nothing has read whole tables.
    assert "its tables 0 B (map)" in server.log.read_text()


def test_rows_that_are_lost_are_an_error_until_they_are_there_again(
    server: RunningServer, stored: Ranker
) -> None:
    path = stored.model.artifact.path
    manifest = open_artifact(path).manifest
    files = [path / piece.file for table in manifest.tables for piece in table.pieces]
    contents = {file: file.read_bytes() for file in files}
    failed = sum(sums(server)[FAILED].values())
    try:
        for file in files:
            file.write_bytes(b"")
        code, words = code_of(server)
        assert code.endswith("UNAVAILABLE")
        assert "cannot be read" in words and "table '" in words
        until(lambda: sum(sums(server)[FAILED].values()) > failed, "the failures are counted")
    finally:
        for file, content in contents.items():
            file.write_bytes(content)
    check(server, stored, 8)
