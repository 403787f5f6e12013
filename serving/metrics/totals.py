"""A version's running totals, for the protocol's ModelStatistics."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Duration:
    """Number of events, and their total time."""

    count: int
    nanoseconds: int

    @classmethod
    def of(cls, count: float, seconds: float) -> "Duration":
        """Converts a count and seconds."""
        return cls(round(count), round(seconds * 1e9))


@dataclass(frozen=True, slots=True)
class BatchTotals:
    """Batches of one size (samples, padding included), over all processes."""

    size: int
    decode: Duration
    infer: Duration
    encode: Duration


@dataclass(frozen=True, slots=True)
class Totals:
    """Totals of all processes since the server's start.

    Executions are batches; `infer` is everything between the queue and the response. The last
    response was at `last_request_ms` since 1970; 0 if there is none.
    """

    samples: int
    requests: int
    executions: int
    last_request_ms: int
    success: Duration
    failure: Duration
    queue: Duration
    decode: Duration
    infer: Duration
    encode: Duration
    batches: tuple[BatchTotals, ...] = ()
