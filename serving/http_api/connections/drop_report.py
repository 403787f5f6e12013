"""Metrics of dropped clients, and a log line once a second."""

import logging
from collections import Counter
from collections.abc import Callable
from time import monotonic

from serving.http_api.connections.connection_table import Drop
from serving.metrics.families.server_families import HTTP_DROPPED
from serving.metrics.server_metrics import ServerMetrics

_SECONDS = 1.0
_log = logging.getLogger("sharded_infer")


class DropReport:
    """Counts dropped connections and requests. One thread calls it."""

    def __init__(self, metrics: ServerMetrics, now: Callable[[], float] = monotonic) -> None:
        self._metrics = metrics
        self._now = now
        self._unsaid: Counter[Drop] = Counter()
        self._said = now() - _SECONDS

    def __call__(self, drop: Drop) -> None:
        """Counts one; all within a second are logged together."""
        self._metrics.add(HTTP_DROPPED, 1, drop.value)
        self._unsaid[drop] += 1
        if self._now() - self._said >= _SECONDS:
            counts = ", ".join(f"{drop.value} {count}" for drop, count in self._unsaid.items())
            _log.warning("HTTP clients dropped: %s", counts)
            self._unsaid.clear()
            self._said = self._now()
