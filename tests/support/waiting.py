"""Waits for conditions instead of for time, beside threads."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_LOOK_SECONDS = 0.01


def until(condition: Callable[[], Any], what: str, seconds: float = 120.0) -> float:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, f"not after {seconds} s: {what}"
        time.sleep(_LOOK_SECONDS)
    return time.monotonic() - began


@contextmanager
def in_threads(count: int, run: Callable[[int], object], stop: threading.Event) -> Iterator[None]:
    """Run work in numbered threads, which are told to stop at the end."""
    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
