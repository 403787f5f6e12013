"""Order of a stream's events, which several threads fetch."""

import threading
from collections.abc import Callable

from serving.abi.transport import EventKind
from serving.transport.events import Event


class _Stream:
    """Early events by their places, and the next place."""

    __slots__ = ("busy", "early", "next")

    def __init__(self) -> None:
        self.early: dict[int, Event] = {}
        self.next = 0
        self.busy = False


class EventOrder:
    """Passes each stream's events on in their order, one at a time. Thread-safe.

    A thread may fetch the end of a stream while another one still reads its last message.
    """

    def __init__(self, take: Callable[[Event], None]) -> None:
        """Starts without streams; `take` handles an event and raises nothing."""
        self._take = take
        self._lock = threading.Lock()
        self._streams: dict[int, _Stream] = {}

    def __len__(self) -> int:
        """Number of streams whose last event has not been handled."""
        return len(self._streams)

    def take(self, event: Event) -> None:
        """Handles an event and those that wait for it, unless an earlier one is outstanding."""
        with self._lock:
            stream = self._streams.setdefault(event.call, _Stream())
            stream.early[event.place] = event
            if stream.busy:
                return
            stream.busy = True
        while True:
            with self._lock:
                ready = stream.early.pop(stream.next, None)
                if ready is None:
                    stream.busy = False
                    return
                stream.next += 1
                if ready.kind is EventKind.CANCELLED:
                    del self._streams[event.call]
            self._take(ready)
