"""Which requests of a queue run together, and which are given up."""

import pytest

from serving.scheduler.batch_forming import batch_from, early_drops
from serving.scheduler.request_queue import BatchingMode, RequestState
from tests.serving.scheduler.batcher_simulation import (
    Curve,
    batcher_with,
    fixed,
    linear,
    mixed,
    queue_of,
    request_of,
)


@pytest.mark.parametrize(
    ("curve", "mode", "requests"),
    [
        (linear, BatchingMode.AUTO, 1),
        (linear, BatchingMode.BATCHED, 10),
        (fixed, BatchingMode.AUTO, 10),
        (mixed, BatchingMode.AUTO, 10),
        (fixed, BatchingMode.INLINE, 1),
    ],
)
def test_requests_join_as_far_as_it_pays(curve: Curve, mode: BatchingMode, requests: int) -> None:
    queue = queue_of(curve, mode)
    batcher_with(queue, *(request_of(queue, 100) for _ in range(20)))
    assert batch_from(queue, 0, 0.0) == (requests, requests * 100)
    assert batch_from(queue, 18, 0.0)[0] == min(requests, 2)


def test_a_batch_grows_no_longer_than_its_tightest_deadline() -> None:
    queue = queue_of(linear, BatchingMode.BATCHED)
    batcher_with(queue, *(request_of(queue, 100, deadline=0.004) for _ in range(3)))
    assert batch_from(queue, 0, 0.0) == (3, 300)
    assert batch_from(queue, 0, 0.001) == (2, 200)


def test_a_small_saving_is_taken_while_it_serves_many_and_delays_few() -> None:
    # Joining saves 0.2 ms for everyone behind, and costs 1 ms for everyone in the batch.
    queue = queue_of(lambda samples: 0.2e-3 + 10e-6 * samples)
    batcher_with(queue, *(request_of(queue, 100) for _ in range(20)))
    assert batch_from(queue, 0, 0.0)[0] == 4
    assert batch_from(queue, 18, 0.0)[0] == 1


@pytest.mark.parametrize(("deadline", "given_up"), [(0.0089, 1), (0.05, 0)])
def test_a_request_is_given_up_when_the_last_would_be_late(deadline: float, given_up: int) -> None:
    queue = queue_of(mixed)
    tight = request_of(queue, 30, deadline=0.0015)
    batcher_with(queue, tight, *(request_of(queue, 30, deadline=deadline) for _ in range(20)))
    assert batch_from(queue, 0, 0.0)[0] == 1
    assert early_drops(queue, 0.0, 1) == given_up


def test_nobody_is_given_up_while_all_can_be_answered() -> None:
    queue = queue_of(fixed)
    batcher_with(queue, request_of(queue, deadline=0.00223), request_of(queue, 10, deadline=0.1))
    assert batch_from(queue, 0, 0.0)[0] == 1
    assert early_drops(queue, 0.0, 1) == 0


def test_nobody_is_given_up_for_a_request_that_would_be_late_itself() -> None:
    queue = queue_of(fixed)
    tight, large = request_of(queue, deadline=0.0023), request_of(queue, 1024, deadline=0.003)
    batcher_with(queue, tight)
    queue.add(large)
    assert large.latest_end < fixed(1024)
    assert early_drops(queue, 0.0, 1) == 0


def test_a_request_that_forces_a_small_batch_is_given_up_when_full_batches_wait() -> None:
    queue = queue_of(fixed)
    tight = request_of(queue, deadline=0.0023)
    batcher = batcher_with(queue, tight, *(request_of(queue, 10, deadline=0.2) for _ in range(150)))
    taken = batcher.take(0.0)
    assert taken.dropped == [tight] and tight.state is RequestState.INFEASIBLE
    assert taken.batch is not None and taken.batch.samples == 1020
