"""Requests on their way: how many there are, and who waits for them how long."""

import threading
from concurrent.futures import ThreadPoolExecutor
from time import monotonic

from serving.scheduler.arrivals import Arrivals

# Nobody waits so long in a test that passes.
LONG = 30.0
# What a wait that does not wait may take on a busy machine.
SOON = 10.0


def seconds_of_wait(arrivals: Arrivals, seconds: float) -> float:
    started = monotonic()
    arrivals.wait(seconds)
    return monotonic() - started


def test_requests_are_on_their_way_until_they_are_settled() -> None:
    arrivals = Arrivals()
    counts = [arrivals.in_transit]
    arrivals.received()
    counts.append(arrivals.in_transit)
    arrivals.received(3)
    counts.append(arrivals.in_transit)
    for _ in range(4):
        arrivals.queued()
        counts.append(arrivals.in_transit)
    assert counts == [0, 1, 4, 3, 2, 1, 0]


def test_nobody_is_waited_for_when_nobody_comes() -> None:
    arrivals = Arrivals()
    assert seconds_of_wait(arrivals, LONG) < SOON
    arrivals.received(2)
    arrivals.queued()
    arrivals.queued()
    assert seconds_of_wait(arrivals, LONG) < SOON


def test_a_wait_ends_with_the_last_that_settles_and_not_before() -> None:
    arrivals = Arrivals()
    arrivals.received(2)
    with ThreadPoolExecutor(3) as threads:
        waits = [threads.submit(seconds_of_wait, arrivals, LONG) for _ in range(3)]
        arrivals.queued()
        threading.Event().wait(0.1)
        assert not any(wait.done() for wait in waits)
        arrivals.queued()
        assert max(wait.result(LONG) for wait in waits) < SOON
    assert arrivals.in_transit == 0


def test_a_wait_for_one_who_does_not_come_ends_with_the_time() -> None:
    arrivals = Arrivals()
    arrivals.received()
    assert 0.05 <= seconds_of_wait(arrivals, 0.05) < SOON


def test_whoever_was_waited_for_in_vain_is_not_waited_for_again() -> None:
    arrivals = Arrivals()
    arrivals.received(2)
    arrivals.wait(0.01)
    assert arrivals.in_transit == 0
    assert seconds_of_wait(arrivals, LONG) < SOON
    # They come after all: nobody was on the way, and nobody is.
    arrivals.queued()
    arrivals.queued()
    assert arrivals.in_transit == 0


def test_new_ones_are_waited_for_while_late_ones_are_not() -> None:
    arrivals = Arrivals()
    arrivals.received(2)
    arrivals.wait(0.01)
    arrivals.received()
    assert arrivals.in_transit == 1
    assert seconds_of_wait(arrivals, 0.05) >= 0.05
    assert arrivals.in_transit == 0


def test_what_is_settled_twice_on_a_thread_counts_once() -> None:
    arrivals = Arrivals()
    arrivals.received(2)
    arrivals.begin()
    arrivals.own_queued()
    arrivals.own_queued()
    assert arrivals.in_transit == 1
    arrivals.begin()
    arrivals.own_queued()
    assert arrivals.in_transit == 0


def test_a_thread_settles_its_own_request_only() -> None:
    arrivals = Arrivals()
    arrivals.received()
    arrivals.begin()
    with ThreadPoolExecutor(1) as threads:
        threads.submit(arrivals.own_queued).result(LONG)
    assert arrivals.in_transit == 1
    arrivals.own_queued()
    assert arrivals.in_transit == 0


def test_counts_of_many_threads_are_not_lost() -> None:
    arrivals = Arrivals()

    def come_and_go(_: int) -> None:
        for _ in range(2000):
            arrivals.received()
            arrivals.begin()
            arrivals.own_queued()

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(come_and_go, range(8)))
    assert arrivals.in_transit == 0
    arrivals.received()
    assert arrivals.in_transit == 1
