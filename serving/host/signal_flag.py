"""A flag that handlers of signals may set."""

import os
import select
from contextlib import suppress


class SignalFlag:
    """A flag that threads wait for; handlers of signals may set it.

    They may not set `threading.Event`: a handler runs between two steps of the main thread, which
    may hold the event's lock, and would wait for it without end.
    """

    def __init__(self) -> None:
        """Is not set."""
        self._is_set = False
        self._read, self._write = os.pipe()
        for end in (self._read, self._write):
            os.set_blocking(end, False)

    def __del__(self) -> None:
        os.close(self._read)
        os.close(self._write)

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._is_set

    def set(self) -> None:
        """Wakes all that wait."""
        self._is_set = True
        # A full pipe wakes as well.
        with suppress(BlockingIOError):
            os.write(self._write, b"\0")

    def clear(self) -> None:
        """Takes it back; one thread may do that."""
        # First: what is set meanwhile stays set, and those that wait look at this before they wait.
        self._is_set = False
        with suppress(BlockingIOError):
            while os.read(self._read, 4096):
                pass

    def wait(self, seconds: float | None = None) -> bool:
        """Waits until it is set, seconds at most; returns whether it is."""
        if not self._is_set:
            poll = select.poll()
            poll.register(self._read, select.POLLIN)
            poll.poll(None if seconds is None else max(0.0, seconds) * 1e3)
        return self._is_set
