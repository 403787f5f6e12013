"""Rate limit of calls, by a token bucket for each of a bounded number of clients."""

import threading
from collections import OrderedDict

_MOST_CLIENTS = 10_000


class RateLimit:
    """Counts calls by client. Thread-safe.

    A bucket holds `burst` calls and fills at `rate` calls a second. Beyond the bound, the client
    that was silent longest is forgotten, so its bucket is full again.
    """

    def __init__(self, rate: float, burst: float, most_clients: int = _MOST_CLIENTS) -> None:
        self._rate = rate
        self._burst = burst
        self._most_clients = most_clients
        self._lock = threading.Lock()
        # By client: remaining calls, and at what time, in seconds.
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, client: str, now: float) -> float:
        """Takes a call at `now` and returns 0, or returns the seconds until the client may call."""
        with self._lock:
            left, since = self._buckets.get(client, (self._burst, now))
            left = min(self._burst, left + (now - since) * self._rate)
            allowed = left >= 1.0
            self._buckets[client] = (left - 1.0 if allowed else left, now)
            self._buckets.move_to_end(client)
            if len(self._buckets) > self._most_clients:
                self._buckets.popitem(last=False)
        return 0.0 if allowed else (1.0 - left) / self._rate
