"""Largest value of the last minute or two."""

WINDOW_SECONDS = 60.0


class RecentLargest:
    """Largest value of the current window and the one before. Not thread-safe."""

    def __init__(self) -> None:
        self._window = 0
        self._now = self._before = 0.0

    def add(self, value: float, now: float) -> None:
        """Adds a non-negative value at `now`, in seconds on a monotonic clock."""
        self._go_on(now)
        self._now = max(self._now, value)

    def value(self, now: float) -> float:
        """The largest value; 0 if there was none."""
        self._go_on(now)
        return max(self._now, self._before)

    def _go_on(self, now: float) -> None:
        window = int(now // WINDOW_SECONDS)
        if window == self._window:
            return
        self._before = self._now if window == self._window + 1 else 0.0
        self._window, self._now = window, 0.0
