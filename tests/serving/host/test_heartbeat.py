"""Heartbeats are counted by a thread, and missed only in time that the watcher itself has run."""

import ctypes
import threading

from serving.host.heartbeat import Heartbeats, Silence


def test_silence_is_the_time_since_the_count_last_changed() -> None:
    silence = Silence(longest_step=1.0)
    assert silence.look({0: 5, 1: 9}, 100.0) == {0: 0.0, 1: 0.0}
    assert silence.look({0: 5, 1: 10}, 100.5) == {0: 0.5, 1: 0.0}
    assert silence.look({0: 5, 1: 10}, 101.0) == {0: 1.0, 1: 0.5}
    assert silence.look({0: 6, 1: 10}, 101.5) == {0: 0.0, 1: 1.0}


def test_time_that_the_watcher_has_slept_itself_is_not_silence() -> None:
    silence = Silence(longest_step=0.2)
    silence.look({0: 5}, 100.0)
    assert silence.look({0: 5}, 4000.0) == {0: 0.2}


def test_a_process_that_comes_again_begins_anew() -> None:
    silence = Silence(longest_step=10.0)
    silence.look({0: 0, 1: 0}, 0.0)
    assert silence.look({0: 0, 1: 0}, 9.0) == {0: 9.0, 1: 9.0}
    silence.forget(0)
    assert silence.look({0: 0}, 9.5) == {0: 0.0}
    assert silence.look({0: 0, 1: 0}, 10.0) == {0: 0.5, 1: 0.0}


def test_signs_are_given_while_native_code_works_and_only_while_it_gets_on() -> None:
    beats = Heartbeats(3)
    goes_on = threading.Event()
    goes_on.set()
    beats.start(-1, goes_on.is_set)
    before = beats.count(2)
    # Without the GIL, as loading and lookups are.
    while beats.count(2) < before + 2:
        ctypes.CDLL(None).usleep(1000)
    assert (beats.count(0), beats.count(1)) == (0, 0)
    goes_on.clear()
    asked = threading.Semaphore(0)
    beats.start(0, lambda: asked.release() or False)  # type: ignore[func-returns-value]
    assert all(asked.acquire(timeout=60) for _ in range(3))
    assert beats.count(0) == 0
