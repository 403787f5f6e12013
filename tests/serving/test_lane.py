"""One queue's order, and what it believes about its own work."""

import pytest

from serving.batcher import Batcher
from serving.lane import (
    DEFAULT_PRIORITY,
    LOWEST_PRIORITY,
    PATIENCE,
    PRIORITY_SECONDS,
    Lane,
    Mode,
    Ticket,
    TicketState,
)
from tests.serving.batcher_simulation import NEVER, Curve, fixed, lane_of, linear, mixed


def _ticket(
    lane: Lane, samples: int = 1, *, at: float = 0.0, deadline: float = NEVER, priority: int = 0
) -> Ticket:
    return Ticket(lane, samples=samples, arrived=at, deadline=deadline, priority=priority)


def _waiting(lane: Lane, *tickets: Ticket) -> Batcher:
    """A batcher in which they wait."""
    batcher = Batcher()
    batcher.add_lane(lane)
    for ticket in tickets:
        batcher.offer(ticket, ticket.arrived)
    return batcher


def test_a_key_is_the_deadline_and_what_the_priority_adds() -> None:
    lane = lane_of(linear)
    assert _ticket(lane, deadline=0.5, priority=3).key == 0.5 + 3 * PRIORITY_SECONDS
    assert _ticket(lane, at=4.0, priority=1).key == 4.0 + PATIENCE + PRIORITY_SECONDS
    assert _ticket(lane).key == _ticket(lane, priority=DEFAULT_PRIORITY).key
    assert _ticket(lane, priority=99).key == _ticket(lane, priority=LOWEST_PRIORITY).key


@pytest.mark.parametrize(("deadline", "latest_end"), [(0.02, 0.018), (1.0, 0.995), (NEVER, NEVER)])
def test_a_tenth_or_5_ms_are_kept_for_the_answer(deadline: float, latest_end: float) -> None:
    assert _ticket(lane_of(linear), deadline=deadline).latest_end == pytest.approx(latest_end)


def test_the_earliest_key_is_first_and_equal_keys_go_in_order() -> None:
    lane = lane_of(linear)
    late, first, second, early = (_ticket(lane, deadline=d) for d in (0.9, 0.5, 0.5, 0.2))
    _waiting(lane, late, first, second, early)
    assert list(lane.tickets()) == [early, first, second, late]
    assert lane.head() is early and lane.head_key() == early.key
    lane.remove(first)
    assert list(lane.tickets()) == [early, second, late] and lane.samples == 3


def test_an_empty_lane_is_never_due() -> None:
    lane = lane_of(linear)
    assert lane.due(0.0) == NEVER and lane.head_key() == NEVER and len(lane) == 0


@pytest.mark.parametrize("mode", [Mode.INLINE, Mode.AUTO])
def test_a_lane_that_does_not_wait_is_due_at_once(mode: Mode) -> None:
    lane = lane_of(linear, mode)
    _waiting(lane, _ticket(lane, at=3.0))
    assert lane.due(3.5) == 3.5


def test_a_batched_lane_is_due_when_its_oldest_has_waited_the_delay() -> None:
    lane = lane_of(linear, Mode.BATCHED, max_delay=0.25)
    oldest, urgent = _ticket(lane, at=1.0), _ticket(lane, at=1.125, deadline=1.5)
    batcher = _waiting(lane, oldest, urgent)
    assert lane.head() is urgent and lane.due(1.125) == 1.25
    batcher.withdraw(oldest)
    assert lane.due(1.125) == 1.375


def test_a_batched_lane_is_due_at_once_when_a_batch_is_full() -> None:
    lane = lane_of(linear, Mode.BATCHED, max_delay=0.25)
    _waiting(lane, _ticket(lane, 600), _ticket(lane, 424))
    assert lane.due(0.0) == 0.0


def test_a_batched_lane_is_due_earlier_where_the_delay_would_break_a_deadline() -> None:
    lane = lane_of(linear, Mode.BATCHED, max_delay=0.25)
    _waiting(lane, _ticket(lane, 100, deadline=0.1))
    assert lane.due(0.0) == pytest.approx(0.095 - linear(100))


def test_a_lane_forgets_who_has_left() -> None:
    # A full batch is due at once, without a look at who came first.
    lane = lane_of(linear, Mode.BATCHED)
    batcher = _waiting(lane)
    for at in range(100):
        batcher.offer(_ticket(lane, 1024, at=at), at)
        batch = batcher.take(at).batch
        assert batch is not None
        batcher.finish(batch, seconds=linear(1024), now=at)
    assert len(lane._arrivals) == 0


def test_work_ahead_is_what_has_an_earlier_key() -> None:
    lane = lane_of(linear, Mode.INLINE)
    _waiting(lane, _ticket(lane, 100, deadline=0.2), _ticket(lane, 300, deadline=0.6))
    for deadline, samples in ((0.1, 0), (0.4, 100), (0.8, 400)):
        before, own = lane.work_ahead(_ticket(lane, 10, deadline=deadline))
        assert (before, own) == (pytest.approx(linear(samples)), pytest.approx(linear(10)))
        key = _ticket(lane, deadline=deadline).key
        assert lane.work_before(key) == pytest.approx(linear(samples))


def test_work_ahead_is_merged_where_that_is_faster() -> None:
    for mode, seconds in ((Mode.INLINE, 50 * fixed(40)), (Mode.AUTO, fixed(1024) + fixed(976))):
        lane = lane_of(fixed, mode)
        _waiting(lane, *(_ticket(lane, 40) for _ in range(50)))
        assert lane.work_before(NEVER) == pytest.approx(seconds, rel=0.01)
    assert sum(lane.work_ahead(_ticket(lane, 40))) == pytest.approx(
        fixed(1024) + fixed(1016), rel=0.01
    )


@pytest.mark.parametrize(
    ("curve", "mode", "requests"),
    [
        (linear, Mode.AUTO, 1),
        (linear, Mode.BATCHED, 10),
        (fixed, Mode.AUTO, 10),
        (mixed, Mode.AUTO, 10),
        (fixed, Mode.INLINE, 1),
    ],
)
def test_requests_join_as_far_as_it_pays(curve: Curve, mode: Mode, requests: int) -> None:
    lane = lane_of(curve, mode)
    _waiting(lane, *(_ticket(lane, 100) for _ in range(20)))
    assert lane.batch_from(0, 0.0) == (requests, requests * 100)
    assert lane.batch_from(18, 0.0)[0] == min(requests, 2)


def test_a_batch_grows_no_longer_than_its_tightest_deadline() -> None:
    lane = lane_of(linear, Mode.BATCHED)
    _waiting(lane, *(_ticket(lane, 100, deadline=0.004) for _ in range(3)))
    assert lane.batch_from(0, 0.0) == (3, 300)
    assert lane.batch_from(0, 0.001) == (2, 200)


def test_a_small_saving_is_taken_while_it_serves_many_and_delays_few() -> None:
    # Joining saves 0.2 ms for everyone behind, and costs 1 ms for everyone in the batch.
    lane = lane_of(lambda samples: 0.2e-3 + 10e-6 * samples)
    _waiting(lane, *(_ticket(lane, 100) for _ in range(20)))
    assert lane.batch_from(0, 0.0)[0] == 4
    assert lane.batch_from(18, 0.0)[0] == 1


@pytest.mark.parametrize(("deadline", "given_up"), [(0.0089, 1), (0.05, 0)])
def test_a_request_is_given_up_when_the_last_would_be_late(deadline: float, given_up: int) -> None:
    lane = lane_of(mixed)
    tight = _ticket(lane, 30, deadline=0.0015)
    _waiting(lane, tight, *(_ticket(lane, 30, deadline=deadline) for _ in range(20)))
    assert lane.batch_from(0, 0.0)[0] == 1
    assert lane.squeezing(0.0, 1) == given_up


def test_nobody_is_given_up_while_all_can_be_answered() -> None:
    lane = lane_of(fixed)
    _waiting(lane, _ticket(lane, deadline=0.00223), _ticket(lane, 10, deadline=0.1))
    assert lane.batch_from(0, 0.0)[0] == 1
    assert lane.squeezing(0.0, 1) == 0


def test_a_request_that_forces_a_small_batch_is_given_up_when_full_batches_wait() -> None:
    lane = lane_of(fixed)
    tight = _ticket(lane, deadline=0.0023)
    batcher = _waiting(lane, tight, *(_ticket(lane, 10, deadline=0.2) for _ in range(150)))
    taken = batcher.take(0.0)
    assert taken.dropped == [tight] and tight.state is TicketState.INFEASIBLE
    assert taken.batch is not None and taken.batch.samples == 1020
