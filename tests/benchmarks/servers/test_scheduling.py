"""`benchmarks executors scheduler`, as users run it."""

from tests.benchmarks.conftest import Measure


def test_it_measures_the_scheduler_by_the_number_of_waiting_requests(
    measure_apart: Measure,
) -> None:
    words = ("--rounds", 1, "--concurrency", 1, "--concurrency", 40)
    out, costs = measure_apart("executors", "scheduler", *words)
    assert "microseconds of processor time a request" in out
    assert [one["waiting"] for one in costs] == [1, 40]
    for one in costs:
        assert min(one["alike"], one["different"], one["dispatcher"]) > 0.0
