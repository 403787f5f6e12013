"""`benchmarks cluster`: its figures, from real shard hosts, and the bits that they stand for."""

import json
from pathlib import Path

import pytest

from serving.bench.workloads.workload import WORKLOADS, Workload
from tests.support.servers import Command


@pytest.mark.parametrize("hosts", [2, 3])
def test_scores_are_equal_and_every_figure_is_there(
    hosts: int, benchmark: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(WORKLOADS, "ragged", Workload("ragged", 6, 500, 16, 3, True, layers=(8,)))
    file = tmp_path / "cluster.json"
    words = ("cluster", "--workload", "ragged", "--hosts", hosts, "--rounds", 2)
    more = ("--requests", 3, "--pairs", 1, "--pairs", 40, "--json", file)
    done = benchmark(*words, *more)
    assert done.code == 0, done.err
    assert done.out.count("bits equal") == 2
    sizes = json.loads(file.read_text())["sizes"]
    assert [size["pairs"] for size in sizes] == [1, 40]
    for size in sizes:
        times = size["times"]
        assert size["bits_equal"] and size["hosts"] == hosts
        assert times.keys() == {"one process", "shard hosts", "plain gRPC"}
        assert all(one["cpu_seconds"] > 0 < one["p50_seconds"] for one in times.values())
        # Lengths and the messages' own fields come beside what is least.
        assert size["wire_bytes"] > size["least_wire_bytes"] > 0
        added = times["shard hosts"]["p50_seconds"] - times["one process"]["p50_seconds"]
        assert size["added_p50_seconds"] == pytest.approx(added)
