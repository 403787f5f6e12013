"""`benchmarks metrics`: a server that counts beside one that does not."""

import pytest

from benchmarks.servers.metrics import counting_seconds
from serving.bench.workloads.named import workload_named
from serving.metrics.families.family import Detail
from tests.benchmarks.conftest import Measure


@pytest.mark.usefixtures("load_generator", "small")
def test_it_loads_both_servers_with_requests_of_each_size(measure: Measure) -> None:
    words = ("metrics", "--workload", "ragged", "--rounds", 2, "--seconds", 0.3)
    out, fields = measure(*words, "--pairs", 2, "--pairs", 1)
    assert "counting µs" in out
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
