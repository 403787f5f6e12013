"""A flag that signal handlers may set."""

import os
import select
from contextlib import suppress


class SignalFlag:
    """A flag that threads wait for, and that signal handlers may set.

    They may not set `threading.Event`: a handler runs between two steps of the main thread, which
    may hold the event's lock, so it would wait for ever.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._read, self._write = os.pipe()
        for end in (self._read, self._write):
            os.set_blocking(end, False)

    def __del__(self) -> None:
        os.close(self._read)
        os.close(self._write)

    def is_set(self) -> bool:
        """True if it is set."""
        return self._is_set

    def set(self) -> None:
        """Set the flag, and wake all that wait."""
        self._is_set = True
        # A full pipe wakes as well.
        with suppress(BlockingIOError):
            os.write(self._write, b"\0")

    def clear(self) -> None:
        """Clear the flag; only one thread may do that."""
        # First: a flag set meanwhile stays set, and waiting threads read it before they wait.
        self._is_set = False
        with suppress(BlockingIOError):
            while os.read(self._read, 4096):
                pass

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it is set, at most `seconds`; return True if it is."""
        if not self._is_set:
            poll = select.poll()
            poll.register(self._read, select.POLLIN)
            poll.poll(None if seconds is None else max(0.0, seconds) * 1e3)
        return self._is_set
