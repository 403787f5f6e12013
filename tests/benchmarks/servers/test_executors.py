"""`benchmarks executors`: its figures, on a small model."""

import numpy as np
import pytest

from benchmarks.servers.open_loads import measure_overloads, simulate_queue
from serving.bench.workloads.workload import equal_tables
from tests.benchmarks.conftest import Measure

SMALL = equal_tables("ranking", 3, 50, 4, 2, layers=(8,))


def test_an_idle_queue_answers_in_the_service_time() -> None:
    arrivals = np.arange(10.0)
    assert np.allclose(simulate_queue(arrivals, np.array([0.25])), 0.25)


def test_a_queue_serves_in_order() -> None:
    assert np.allclose(simulate_queue(np.zeros(4), np.array([1.0])), [1, 2, 3, 4])


def test_a_simulated_queue_waits_as_pollaczek_and_khinchine_say() -> None:
    # Mean wait of M/D/1 at load 0.7: 0.7 / (2 * (1 - 0.7)) service times.
    generator = np.random.default_rng(3)
    arrivals = np.cumsum(generator.exponential(1 / 0.7, 400_000))
    latency = simulate_queue(arrivals, np.array([1.0]))
    assert latency.mean() - 1.0 == pytest.approx(0.7 / 0.6, rel=0.05)


@pytest.mark.usefixtures("load_generator", "small")
def test_the_matrix_has_every_executor_and_an_echo(measure: Measure) -> None:
    words = ("--pairs", 1, "--concurrency", 2, "--rounds", 1, "--seconds", 0.3)
    out, cells = measure("executors", "matrix", "--workload", "ragged", *words)
    assert "server on one core, load on another" in out
    assert [cell["variant"] for cell in cells] == ["inline", "batched", "auto", "echo"]
    assert all(cell["requests_per_second"] > 0 for cell in cells)
    assert cells[0]["mean_batch"] == 1


@pytest.mark.usefixtures("load_generator", "small")
def test_arrivals_are_measured_beside_a_queue_with_the_same_arrivals(measure: Measure) -> None:
    words = ("--pairs", 2, "--share", 0.3, "--rounds", 1, "--seconds", 0.6)
    _, figures = measure("executors", "arrivals", "--workload", "ragged", *words)
    kinds = {(one["mode"], one["distribution"]) for one in figures}
    assert kinds == {(m, d) for m in ("inline", "auto") for d in ("poisson", "constant")}
    assert all(min(one["latency_ms"]["p99"], one["predicted_ms"]["p99"]) > 0 for one in figures)


def test_the_scheduler_is_measured_by_the_number_of_waiting_requests(
    measure_apart: Measure,
) -> None:
    words = ("--rounds", 1, "--concurrency", 1, "--concurrency", 40)
    out, costs = measure_apart("executors", "scheduler", *words)
    assert "microseconds of processor time a request" in out
    assert [one["waiting"] for one in costs] == [1, 40]
    assert all(min(one["alike"], one["different"], one["dispatcher"]) > 0.0 for one in costs)


@pytest.mark.usefixtures("load_generator")
def test_an_overload_is_answered_in_part_and_the_rest_refused_with_a_code() -> None:
    # What is measured one after another is compared: others may have the cores in between.
    for _ in range(3):
        [figures] = measure_overloads(
            SMALL,
            sizes=(200,),
            times=2.0,
            deadline_seconds=0.1,
            seconds=1.0,
            calm_seconds=0.5,
        ).fields
        under_load, answer = figures["overload_refusal_cpu_ms"], figures["answer_cpu_ms"]
        if figures["goodput"] > 0 and under_load < answer:
            break
    assert 0 < figures["goodput"] <= figures["offered"]
    assert figures["refusal_cpu_ms"] > 0 and under_load < answer
    # CANCELLED: grpcio by itself, when calls come faster than Python can take them.
    assert set(figures["errors"]) <= {"DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "CANCELLED"}
