"""`benchmarks metrics`: a server that counts beside one that does not."""

import json
from pathlib import Path

import pytest

from benchmarks.servers.metrics import counting_seconds
from serving.bench.load.library import load_generator_refusal
from serving.bench.workloads.workload import WORKLOADS, Workload, workload_named
from serving.metrics.families.family import Detail
from tests.support.servers import Command

needs_load = pytest.mark.skipif(
    load_generator_refusal() is not None, reason=str(load_generator_refusal())
)


@needs_load
def test_it_loads_both_servers_with_requests_of_each_size(
    benchmark: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(WORKLOADS, "ragged", Workload("ragged", 5, 50, 4, 3, True, layers=(8,)))
    file = tmp_path / "metrics.json"
    words = ("metrics", "--workload", "ragged", "--rounds", 2, "--seconds", 0.3)
    done = benchmark(*words, "--pairs", 2, "--pairs", 1, "--json", file)
    assert done.code == 0, done.err
    assert "counting µs" in done.out
    fields = json.loads(file.read_text())
    assert [one["pairs"] for one in fields["rounds"]] == [2, 2, 1, 1]
    assert [one["pairs"] for one in fields["sizes"]] == [2, 1]
    for one in fields["rounds"]:
        assert one["cost"] == pytest.approx(1 - one["full"] / one["off"])
        assert min(one["full"], one["off"], one["full_cpu_ms"], one["off_cpu_ms"]) > 0
    for one in fields["sizes"]:
        assert 0.5 < one["counting_us"] < 200


def test_less_detail_costs_less() -> None:
    workload = workload_named("ranking")
    costs = [counting_seconds(workload, 16, detail) for detail in Detail]
    assert costs[Detail.OFF] < costs[Detail.FULL] < 200e-6
