"""Waits for conditions instead of for time."""

import time
from collections.abc import Callable
from typing import Any

_LOOK_SECONDS = 0.01


def until(condition: Callable[[], Any], what: str, seconds: float = 120.0) -> float:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, f"not after {seconds} s: {what}"
        time.sleep(_LOOK_SECONDS)
    return time.monotonic() - began
