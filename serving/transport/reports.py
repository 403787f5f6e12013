"""Metrics and one log line a second of calls that the compiled transport refused or dropped."""

import logging
import threading
from collections.abc import Callable, Mapping
from time import monotonic

from serving.abi.transport import Counters
from serving.status import StatusCode

_log = logging.getLogger("sharded_infer")
_SECONDS = 1.0
_BY_NUMBER = {code.number: code for code in StatusCode}
# The transport's counters, by the reasons of the metric (`GRPC_DROPS`).
GRPC_COUNTERS = {
    "connections": "too_many_connections",
    "address": "too_many_of_address",
    "handshake": "handshakes_failed",
    "late": "too_late",
    "malformed": "protocol_errors",
    "resets": "too_many_resets",
    "frames": "too_many_frames",
    "pings": "too_many_pings",
    "calls": "too_many_calls",
    "unread": "not_reading",
    "keepalive": "keepalive_lost",
    "silent": "silent_streams",
}
# The same for HTTP/1.1 (`HTTP_DROPS`).
HTTP_COUNTERS = {
    "connections": "too_many_connections",
    "address": "too_many_of_address",
    "descriptors": "no_descriptors",
    "head_late": "too_late",
    "body_late": "bodies_too_late",
    "unread": "not_reading",
    "malformed": "protocol_errors",
}


class TransportReports:
    """Counts and logs the transport's own decisions. Thread-safe."""

    def __init__(
        self,
        count_refused: Callable[[StatusCode, int], None],
        count_dropped: Callable[[str, int], None],
        counters: Mapping[str, str] = GRPC_COUNTERS,
        protocol: str = "gRPC",
        now: Callable[[], float] = monotonic,
    ) -> None:
        """Starts at zero.

        Args:
            count_refused: called with the code and number of refused predict calls.
            count_dropped: called with the reason and number of dropped connections or calls.
            counters: the transport's, by reason.
            protocol: of the clients, for the log.
        """
        self._count_refused = count_refused
        self._count_dropped = count_dropped
        self._now = now
        self._lock = threading.Lock()
        self._refused = [0] * len(_BY_NUMBER)
        self._counters = counters
        self._protocol = protocol
        self._dropped = dict.fromkeys(counters, 0)
        self._next_line = 0.0

    def look(self, counters: Counters) -> None:
        """Compares the counters with the previous ones."""
        if not self._lock.acquire(blocking=False):
            return  # another thread looks
        try:
            refused = list(counters.refused_predict)
            if refused != self._refused:
                for number, (count, before) in enumerate(zip(refused, self._refused, strict=True)):
                    if count != before:
                        self._count_refused(_BY_NUMBER[number], count - before)
                self._refused = refused
            if self._now() >= self._next_line:
                self._tell(counters)
        finally:
            self._lock.release()

    def _tell(self, counters: Counters) -> None:
        dropped = {reason: getattr(counters, name) for reason, name in self._counters.items()}
        grown = {reason: n - self._dropped[reason] for reason, n in dropped.items()}
        self._dropped = dropped
        self._next_line = self._now() + _SECONDS
        for reason, count in grown.items():
            if count:
                self._count_dropped(reason, count)
        counts = ", ".join(f"{reason} {count}" for reason, count in grown.items() if count)
        if counts:
            _log.warning("%s clients dropped: %s", self._protocol, counts)
