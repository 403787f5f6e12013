"""Readings of the last minutes, shared by all open pages."""

import threading
from collections import deque
from collections.abc import Callable, Sequence

from serving.dashboard.reading import Reading

# Pages that ask within this time get the same reading.
FRESH_SECONDS = 1.0
KEPT_SECONDS = 600.0
# Pages ask every 2 s, so readings this far apart are kept, and the newest.
_SPACING_SECONDS = 1.9
_MOST = int(KEPT_SECONDS / _SPACING_SECONDS)


class History:
    """Readings in chronological order. Thread-safe."""

    def __init__(
        self, read: Callable[[float, Reading | None], Reading], clock: Callable[[], float]
    ) -> None:
        """Starts empty; times are in seconds since 1970, and `read` gets the previous reading."""
        self._read = read
        self._clock = clock
        self._readings: deque[Reading] = deque(maxlen=_MOST)
        self._lock = threading.Lock()

    def newest(self, within_seconds: float = FRESH_SECONDS) -> Reading:
        """A new reading, or one that is not older than `within_seconds`."""
        # Concurrent callers wait for a reading in progress, and take none.
        with self._lock:
            now = self._clock()
            readings = self._readings
            # After the clock was set back, all readings are useless.
            if readings and readings[-1].at > now:
                readings.clear()
            if readings and now - readings[-1].at < within_seconds:
                return readings[-1]
            reading = self._read(now, readings[-1] if readings else None)
            if len(readings) > 1 and now - readings[-2].at < _SPACING_SECONDS:
                readings.pop()
            readings.append(reading)
            while readings[0].at < now - KEPT_SECONDS:
                readings.popleft()
            return reading

    def since(self, at: float) -> Sequence[Reading]:
        """Readings after a time, seconds since 1970, the newest last."""
        with self._lock:
            return [reading for reading in self._readings if reading.at > at]
