"""Open ModelStreamInfer calls of one process, over any transport."""

import threading
from collections.abc import Callable
from time import monotonic
from typing import Protocol

from serving.status import DRAINING, Status, StatusCode


class OpenStream(Protocol):
    """A registered stream."""

    @property
    def is_over(self) -> bool:
        """True if nothing more is sent on it."""

    @property
    def silent_since(self) -> float:
        """End of its last request, or its opening, monotonic; infinity while it has one."""

    def drain(self) -> None:
        """Ends it once its received requests are answered."""

    def give_way(self, status: Status) -> bool:
        """Ends it with a status and returns True, unless it has a request."""


# A stream without requests for so long may be evicted for another.
_SILENT_SECONDS = 10.0
_SILENT = Status(
    StatusCode.RESOURCE_EXHAUSTED,
    f"the stream had no request for {_SILENT_SECONDS:g} s, and another one needed its place",
)


class OpenStreams:
    """Streams up to a limit. Thread-safe."""

    def __init__(self, most: int, count_dropped: Callable[[str, int], None]) -> None:
        """Starts without streams; `count_dropped` gets a reason of `GRPC_DROPS` and a number."""
        self._most = most
        self._count_dropped = count_dropped
        self._lock = threading.Lock()
        self._streams: set[OpenStream] = set()
        self._draining = False

    def enter(self, stream: OpenStream) -> Status | None:
        """Registers a stream, or returns the refusal."""
        with self._lock:
            if self._draining:
                return DRAINING
            if len(self._streams) >= self._most:
                # Streams ended by their answers may not have left yet.
                self._streams = {one for one in self._streams if not one.is_over}
            if len(self._streams) >= self._most and not self._one_gives_way():
                words = f"{self._most} streams are open, no more are taken in"
                return Status(StatusCode.RESOURCE_EXHAUSTED, words)
            self._streams.add(stream)
        return None

    def _one_gives_way(self) -> bool:
        longest = min(self._streams, key=lambda one: one.silent_since)
        if monotonic() - longest.silent_since < _SILENT_SECONDS or not longest.give_way(_SILENT):
            return False
        self._streams.discard(longest)
        self._count_dropped("silent", 1)
        return True

    def leave(self, stream: OpenStream) -> None:
        """Removes a stream that has ended."""
        with self._lock:
            self._streams.discard(stream)

    def drain(self) -> None:
        """Accepts no more streams; ends each open one once its received requests are answered."""
        with self._lock:
            self._draining = True
            streams = list(self._streams)
        for stream in streams:
            stream.drain()
