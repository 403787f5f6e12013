import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any

import pytest

from serving.host.signal_flag import SignalFlag


def test_it_is_set_and_taken_back_however_often_it_was_set() -> None:
    flag = SignalFlag()
    # The last fill the pipe.
    for times in (1, 2, 100_000):
        assert not flag.is_set() and not flag.wait(0) and not flag.wait(0.01)
        for _ in range(times):
            flag.set()
        assert flag.is_set() and flag.wait() and flag.wait(0)
        flag.clear()
    assert not flag.is_set() and not flag.wait(0)


def test_a_signal_ends_a_wait() -> None:
    flag = SignalFlag()
    before = signal.signal(signal.SIGUSR1, lambda *_: flag.set())
    try:
        later = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1))
        later.start()
        assert flag.wait(30)
        later.join()
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("call", ["wait", "set", "clear", "is_set"])
def test_a_handler_may_come_before_each_line(call: str) -> None:
    """Handlers run between two steps of the main thread: here, before each."""
    lines = 0

    def before_line(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        if event == "line" and frame.f_code.co_filename == file:
            lines += 1
            if lines == wanted:
                flag.set()
        return before_line

    file = sys.modules[SignalFlag.__module__].__file__
    wanted, reached = 1, True
    while reached:
        flag, lines = SignalFlag(), 0
        traced, began = sys.gettrace(), time.monotonic()
        sys.settrace(before_line)
        try:
            getattr(flag, call)(*((0.2,) if call == "wait" else ()))
        finally:
            sys.settrace(traced)
        reached = lines >= wanted
        if reached:
            # What was asked for is there, or was taken back just then; nobody waits for it.
            assert call == "clear" or flag.wait(0)
            flag.set()
            assert flag.wait(10) and time.monotonic() - began < 10
        wanted += 1
    assert wanted > 2
