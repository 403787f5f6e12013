"""A version's running totals, as the protocol's ModelStatistics reports them."""

import threading
import time
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Duration:
    """How often something happened, and how long it took in all."""

    count: int = 0
    nanoseconds: int = 0

    def plus(self, seconds: float) -> "Duration":
        """One more of them."""
        return Duration(self.count + 1, self.nanoseconds + round(seconds * 1e9))


@dataclass(frozen=True, slots=True)
class Totals:
    """Totals since the version was loaded.

    Attributes:
        samples: samples scored.
        requests: requests scored.
        last_request_ms: when the last one was answered, milliseconds since 1970.
        success: whole requests that were answered.
        failure: whole requests that were refused or failed.
        decode: reading requests.
        infer: lookups and tower.
        encode: writing responses.
    """

    samples: int = 0
    requests: int = 0
    last_request_ms: int = 0
    success: Duration = field(default_factory=Duration)
    failure: Duration = field(default_factory=Duration)
    decode: Duration = field(default_factory=Duration)
    infer: Duration = field(default_factory=Duration)
    encode: Duration = field(default_factory=Duration)


class Statistics:
    """Totals that RPC threads add to."""

    def __init__(self) -> None:
        """Begins at nothing."""
        self._lock = threading.Lock()
        self._totals = Totals()

    @property
    def totals(self) -> Totals:
        """The totals now, consistent with each other."""
        with self._lock:
            return self._totals

    def add_success(
        self, *, samples: int, decode: float, infer: float, encode: float, whole: float
    ) -> None:
        """Counts an answered request; times in seconds."""
        now_ms = time.time_ns() // 10**6
        with self._lock:
            old = self._totals
            self._totals = Totals(
                samples=old.samples + samples,
                requests=old.requests + 1,
                last_request_ms=now_ms,
                success=old.success.plus(whole),
                failure=old.failure,
                decode=old.decode.plus(decode),
                infer=old.infer.plus(infer),
                encode=old.encode.plus(encode),
            )

    def add_failure(self, seconds: float) -> None:
        """Counts a request that was refused or failed."""
        with self._lock:
            self._totals = replace(self._totals, failure=self._totals.failure.plus(seconds))
