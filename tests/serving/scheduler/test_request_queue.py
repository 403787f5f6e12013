"""One queue's order, and what it believes about its own work."""

import pytest

from serving.scheduler.request_queue import (
    DEFAULT_PRIORITY,
    LOWEST_PRIORITY,
    PATIENCE,
    PRIORITY_SECONDS,
    BatchingMode,
    QueuedRequest,
    RequestQueue,
)
from tests.serving.scheduler.batcher_simulation import (
    NEVER,
    batcher_with,
    fixed,
    linear,
    queue_of,
    request_of,
)


def _work_ahead(
    queue: RequestQueue[QueuedRequest], samples: int, **fields: float
) -> tuple[float, float]:
    return queue.work_ahead(samples, request_of(queue, samples, **fields).key)  # type: ignore[arg-type]


def test_a_key_is_the_deadline_and_what_the_priority_adds() -> None:
    queue = queue_of(linear)
    assert request_of(queue, deadline=0.5, priority=3).key == 0.5 + 3 * PRIORITY_SECONDS
    assert request_of(queue, at=4.0, priority=1).key == 4.0 + PATIENCE + PRIORITY_SECONDS
    assert request_of(queue).key == request_of(queue, priority=DEFAULT_PRIORITY).key
    assert request_of(queue, priority=99).key == request_of(queue, priority=LOWEST_PRIORITY).key


@pytest.mark.parametrize(("deadline", "latest_end"), [(0.02, 0.018), (1.0, 0.995), (NEVER, NEVER)])
def test_a_tenth_or_5_ms_are_kept_for_the_answer(deadline: float, latest_end: float) -> None:
    assert request_of(queue_of(linear), deadline=deadline).latest_end == pytest.approx(latest_end)


def test_the_earliest_key_is_first_and_equal_keys_go_in_order() -> None:
    queue = queue_of(linear)
    late, first, second, early = (request_of(queue, deadline=d) for d in (0.9, 0.5, 0.5, 0.2))
    batcher_with(queue, late, first, second, early)
    assert list(queue.in_order()) == [early, first, second, late]
    assert queue.head() is early and queue.head_key() == early.key
    queue.remove(first)
    assert list(queue.in_order()) == [early, second, late] and queue.samples == 3


def test_an_empty_queue_is_never_due() -> None:
    queue = queue_of(linear)
    assert queue.due(0.0) == NEVER and queue.head_key() == NEVER and len(queue) == 0


@pytest.mark.parametrize("mode", [BatchingMode.INLINE, BatchingMode.AUTO])
def test_a_queue_that_does_not_wait_is_due_at_once(mode: BatchingMode) -> None:
    queue = queue_of(linear, mode)
    batcher_with(queue, request_of(queue, at=3.0))
    assert queue.due(3.5) == 3.5


def test_a_batched_queue_is_due_when_its_oldest_has_waited_the_delay() -> None:
    queue = queue_of(linear, BatchingMode.BATCHED, max_delay=0.25)
    oldest, urgent = request_of(queue, at=1.0), request_of(queue, at=1.125, deadline=1.5)
    batcher = batcher_with(queue, oldest, urgent)
    assert queue.head() is urgent and queue.due(1.125) == 1.25
    batcher.cancel(oldest)
    assert queue.due(1.125) == 1.375


def test_a_batched_queue_is_due_at_once_when_a_batch_is_full() -> None:
    queue = queue_of(linear, BatchingMode.BATCHED, max_delay=0.25)
    batcher_with(queue, request_of(queue, 600), request_of(queue, 424))
    assert queue.due(0.0) == 0.0


def test_a_batched_queue_is_due_earlier_where_the_delay_would_break_a_deadline() -> None:
    queue = queue_of(linear, BatchingMode.BATCHED, max_delay=0.25)
    batcher_with(queue, request_of(queue, 100, deadline=0.1))
    assert queue.due(0.0) == pytest.approx(0.095 - linear(100))


def test_a_queue_forgets_who_has_left() -> None:
    # A full batch is due at once, without a look at who came first.
    queue = queue_of(linear, BatchingMode.BATCHED)
    batcher = batcher_with(queue)
    for at in range(100):
        batcher.offer(request_of(queue, 1024, at=at), at)
        batch = batcher.take(at).batch
        assert batch is not None
        batcher.finish(batch, seconds=linear(1024), now=at)
    assert len(queue._arrivals) == 0


def test_work_ahead_is_what_has_an_earlier_key() -> None:
    queue = queue_of(linear, BatchingMode.INLINE)
    batcher_with(queue, request_of(queue, 100, deadline=0.2), request_of(queue, 300, deadline=0.6))
    for deadline, samples in ((0.1, 0), (0.4, 100), (0.8, 400)):
        before, own = _work_ahead(queue, 10, deadline=deadline)
        assert (before, own) == (pytest.approx(linear(samples)), pytest.approx(linear(10)))
        key = request_of(queue, deadline=deadline).key
        assert queue.work_before(key) == pytest.approx(linear(samples))


def test_work_ahead_is_merged_where_that_is_faster() -> None:
    for mode, seconds in (
        (BatchingMode.INLINE, 50 * fixed(40)),
        (BatchingMode.AUTO, fixed(1024) + fixed(976)),
    ):
        queue = queue_of(fixed, mode)
        batcher_with(queue, *(request_of(queue, 40) for _ in range(50)))
        assert queue.work_before(NEVER) == pytest.approx(seconds, rel=0.01)
    assert sum(_work_ahead(queue, 40)) == pytest.approx(fixed(1024) + fixed(1016), rel=0.01)
