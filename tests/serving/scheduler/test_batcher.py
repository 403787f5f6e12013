"""The batcher on a virtual clock: what it refuses and answers, and how soon, under load."""

import heapq
import math
import random
from statistics import mean
from typing import Any

import pytest

from serving.errors import DeadlineError, QueueFullError
from serving.scheduler.batching import BatchingMode
from serving.scheduler.refusals import Refusal
from serving.scheduler.scheduler import QueueLimits
from serving.scheduler.version_queue import VersionQueue
from tests.reference.request_queue import PATIENCE, PRIORITY_SECONDS, QueuedRequest
from tests.serving.scheduler.batcher_simulation import (
    NEVER,
    Arrival,
    Curve,
    VirtualServer,
    fixed,
    linear,
    mixed,
    noisy,
    poisson,
    queue_of,
)
from tests.support.compiled_batcher import CompiledBatcher

# A curve, and requests with which it is as its name says.
COSTS = ((linear, 270), (fixed, 20), (mixed, 30))


def _batcher(queue: VersionQueue, limits: QueueLimits | None = None) -> CompiledBatcher:
    batcher = CompiledBatcher(limits=limits)
    batcher.add_queue(queue)
    return batcher


def _offer(
    queue: VersionQueue, batcher: CompiledBatcher, samples: int = 1, **fields: Any
) -> Refusal | None:
    return batcher.offer(QueuedRequest(queue, samples=samples, arrived=0.0, **fields), 0.0)


def test_a_full_queue_says_what_is_full_and_when_to_come_again() -> None:
    for limits, words in (
        (QueueLimits(requests=1), "2 requests would wait, at most 1 may"),
        (QueueLimits(samples=1200), "1800 samples would wait, at most 1200 may"),
        (QueueLimits(size_bytes=10), "14 bytes would wait, at most 10 may"),
    ):
        queue = queue_of(linear)
        batcher = _batcher(queue, limits)
        assert _offer(queue, batcher, 900, size_bytes=7) is None
        refusal = _offer(queue, batcher, 900, size_bytes=7)
        assert refusal is not None and isinstance(refusal.error, QueueFullError)
        assert f"{words}; retry in 18 ms" in str(refusal.error)
        assert refusal.error.retry_seconds == pytest.approx(linear(1800))


def test_a_deadline_that_cannot_be_met_names_what_is_left_and_what_is_expected() -> None:
    queue = queue_of(linear)
    batcher = _batcher(queue)
    _offer(queue, batcher, 2000)
    assert batcher.take(0.0).batch is not None
    _offer(queue, batcher, 1000)
    refusal = _offer(queue, batcher, 100, deadline=0.008, priority=10)
    assert refusal is not None and isinstance(refusal.error, DeadlineError)
    assert "8 ms are left, an answer would take about 21 ms" in str(refusal.error)
    assert batcher.requests == 1


@pytest.mark.parametrize("deadline", [0.0, -NEVER, math.nan])
def test_a_deadline_that_has_passed_or_is_no_number_is_refused(deadline: float) -> None:
    queue = queue_of(linear)
    refusal = _offer(queue, _batcher(queue), deadline=deadline)
    assert refusal is not None and isinstance(refusal.error, DeadlineError)
    assert "had passed" in str(refusal.error)


@pytest.mark.parametrize("stranger", [{"priority": 1}, {"deadline_seconds": 0.05}])
@pytest.mark.parametrize("curve", [linear, fixed, mixed])
def test_no_stream_of_urgent_requests_holds_back_another_for_ever(
    curve: Curve, stranger: dict[str, float]
) -> None:
    generator = random.Random(1)
    stream = poisson(0.95 / curve(270), 4.0, generator, samples=270, **stranger)
    arrivals = heapq.merge(
        stream, [Arrival(0.5, samples=270, priority=10)], key=lambda arrival: arrival.at
    )
    server = VirtualServer(
        CompiledBatcher(), [queue_of(curve, BatchingMode.INLINE)], noisy(curve, generator)
    )
    server.run(arrivals)
    waits = [
        run.batch.started - request.arrived
        for run in server.runs
        for request in run.batch.requests
        if request.arrival.priority == 10
    ]
    assert len(waits) == 1
    assert waits[0] <= PATIENCE + 10 * PRIORITY_SECONDS + 3 * curve(270)


def _throughput(curve: Curve, samples: int) -> float:
    """Requests a second of one slot, in batches of the best size."""
    return max(n / curve(n * samples) for n in range(1, 1024 // samples + 1))


def _goodput(server: VirtualServer, begin: float, end: float) -> float:
    """Requests a second answered in time, between two moments."""
    return len(server.in_time(begin, end)) / (end - begin)


@pytest.mark.parametrize("slots", [1, 2, 4])
@pytest.mark.parametrize("deadline_seconds", [0.02, 0.05, 0.1])
@pytest.mark.parametrize(("curve", "samples"), [(linear, 270), (fixed, 60), (mixed, 60)])
def test_three_times_the_capacity_leaves_nine_tenths_of_it_in_time(
    curve: Curve, samples: int, slots: int, deadline_seconds: float
) -> None:
    generator = random.Random(1)
    capacity = slots * _throughput(curve, samples)
    # The queue has filled when the first deadlines pass.
    seconds = max(4500 / capacity / 3.0, 3.0 * deadline_seconds)
    arrivals = poisson(
        3.0 * capacity, seconds, generator, samples=samples, deadline_seconds=deadline_seconds
    )
    server = VirtualServer(CompiledBatcher(slots=slots), [queue_of(curve)], noisy(curve, generator))
    server.run(arrivals)
    assert _goodput(server, deadline_seconds, seconds) >= 0.92 * capacity
    # Who runs is answered in time, and no more wait than can be answered before their deadlines.
    assert len(server.in_time()) >= 0.999 * len(server.delays())
    assert server.most_waiting <= 1.1 * deadline_seconds * capacity


def test_three_times_the_capacity_in_single_samples_is_merged_and_memory_is_bounded() -> None:
    generator = random.Random(1)
    capacity = _throughput(fixed, 1)
    arrivals = poisson(3.0 * capacity, 0.04, generator, samples=1, deadline_seconds=0.02)
    server = VirtualServer(CompiledBatcher(), [queue_of(fixed)], noisy(fixed, generator)).run(
        arrivals
    )
    assert _goodput(server, 0.005, 0.04) >= 0.92 * capacity
    assert server.most_waiting == 1024


@pytest.mark.parametrize(("curve", "samples"), COSTS[1:])
def test_a_few_tight_deadlines_do_not_cost_the_others_theirs(curve: Curve, samples: int) -> None:
    generator = random.Random(1)
    rate = 0.8 * _throughput(curve, samples)
    arrivals = [
        Arrival(a.at, samples=samples, deadline_seconds=generator.choice((0.005,) + (0.1,) * 4))
        for a in poisson(rate, 8000 / rate, generator)
    ]
    server = VirtualServer(CompiledBatcher(), [queue_of(curve)], noisy(curve, generator)).run(
        arrivals
    )
    patient = [a for a in arrivals if a.deadline_seconds == 0.1]
    answered = [t for t in server.in_time() if t.arrival.deadline_seconds == 0.1]
    assert len(answered) >= 0.97 * len(patient)


def _mean_delay(curve: Curve, samples: int, mode: BatchingMode, slots: int, rate: float) -> float:
    generator = random.Random(1)
    queue = queue_of(curve, mode)
    server = VirtualServer(CompiledBatcher(slots=slots), [queue], noisy(curve, generator))
    return mean(server.run(poisson(rate, 2000 / rate, generator, samples=samples)).delays())


@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize("load", [0.3, 0.7, 0.95])
@pytest.mark.parametrize("merges", [False, True], ids=["alone", "merged"])
@pytest.mark.parametrize(("curve", "samples"), COSTS)
def test_auto_is_as_quick_as_the_better_of_inline_and_batched(
    curve: Curve, samples: int, merges: bool, load: float, slots: int
) -> None:
    # A load that single requests can carry, or one that only batches of eight can.
    together = max(n for n in (1, 2, 3, 4, 5, 6, 7, 8) if n * samples <= 1024) if merges else 1
    rate = load * slots * together / curve(together * samples)
    auto, inline, batched = (
        _mean_delay(curve, samples, mode, slots, rate)
        for mode in (BatchingMode.AUTO, BatchingMode.INLINE, BatchingMode.BATCHED)
    )
    assert auto <= 1.08 * min(inline, batched)


def test_a_table_that_is_far_too_high_recovers_beside_a_busy_queue() -> None:
    generator = random.Random(1)
    high, busy = queue_of(linear, factor=5.0), queue_of(linear)
    arrivals = sorted(
        [
            *poisson(100.0, 40.0, generator, samples=100, deadline_seconds=0.003),
            *poisson(60.0, 40.0, generator, samples=100, queue=1),
        ],
        key=lambda arrival: arrival.at,
    )
    server = VirtualServer(CompiledBatcher(slots=1), [high, busy], noisy(linear, generator)).run(
        arrivals
    )
    answered = [t for t in server.in_time() if t.queue is high and t.arrived > 30.0]
    came = [t for t in server.requests if t.queue is high and t.arrived > 30.0]
    assert len(answered) >= 0.9 * len(came)
    assert high.costs.predicted(100) <= 1.8 * linear(100)


def test_an_unread_request_may_be_as_urgent_as_those_of_the_last_minute() -> None:
    queue = queue_of(linear)
    batcher = _batcher(queue)
    assert batcher.urgent_lead(0.0) == 0.0
    _offer(queue, batcher, 270, priority=1)
    assert [batcher.urgent_lead(now) for now in (0.0, 59.0, 61.0)] == [0.05, 0.05, 0.0]
