"""`benchmarks cluster`: its figures, from real shard hosts, and the bits that they stand for."""

import pytest

from tests.benchmarks.conftest import Measure


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("hosts", [2, 3])
def test_scores_are_equal_and_every_figure_is_there(hosts: int, measure: Measure) -> None:
    words = ("cluster", "--workload", "ragged", "--hosts", hosts, "--rounds", 2)
    out, fields = measure(*words, "--requests", 3, "--pairs", 1, "--pairs", 40)
    assert out.count("bits equal") == 2
    assert [size["pairs"] for size in fields["sizes"]] == [1, 40]
    for size in fields["sizes"]:
        times = size["times"]
        assert size["bits_equal"] and size["hosts"] == hosts
        assert times.keys() == {"one process", "shard hosts", "plain gRPC"}
        assert all(one["cpu_seconds"] > 0 < one["p50_seconds"] for one in times.values())
        # Lengths and the messages' own fields come beside what is least.
        assert size["wire_bytes"] > size["least_wire_bytes"] > 0
        added = times["shard hosts"]["p50_seconds"] - times["one process"]["p50_seconds"]
        assert size["added_p50_seconds"] == pytest.approx(added)
