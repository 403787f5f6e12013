"""A version's running totals, as the protocol's ModelStatistics reports them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Duration:
    """How often something happened, and how long it took in all."""

    count: int
    nanoseconds: int

    @classmethod
    def of(cls, count: float, seconds: float) -> "Duration":
        """From what metrics counted."""
        return cls(round(count), round(seconds * 1e9))


@dataclass(frozen=True, slots=True)
class BatchTotals:
    """The batches of one size, over all processes.

    Attributes:
        size: samples, padding included.
        decode: the batches, and the time of reading their requests.
        infer: the batches, and the time of their lookups and towers.
        encode: the batches, and the time of writing their responses.
    """

    size: int
    decode: Duration
    infer: Duration
    encode: Duration


@dataclass(frozen=True, slots=True)
class Totals:
    """Totals of all processes since the server's start.

    Attributes:
        executions: batches.
        last_request_ms: time of the last answer, milliseconds since 1970; 0 if there is none.
        success: whole requests that were answered.
        failure: whole requests that were refused or failed.
        queue: waiting for the batch to start.
        decode: reading requests.
        infer: lookups and tower, and everything else between the queue and the response.
        encode: writing responses.
        batches: answered batches, by size.
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
