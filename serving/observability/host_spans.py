"""Spans of a batch's lookups on shard hosts, for batches with a traced request.

The lookups are below the engine, which is independent of tracing. A batch's thread marks the batch
as traced before it runs it, and the lookups, on the same thread, add their spans to it.
"""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from serving.observability.trace_context import RequestTrace


@dataclass(frozen=True, slots=True)
class HostSpan:
    """A batch's lookup on one shard host. Times are on the monotonic clock.

    Attributes:
        trace_id: sent with the lookup, with `span_id` as the parent of the host's own span.
        host: its number in the plans.
        replica: address of the replica that answered; of a failed lookup, of all that were called,
            separated by commas.
        sent_bytes: of the messages to all replicas.
        hedges, retries: calls because the lookup was late, or others failed.
        code: name of the gRPC status code; `error` says why no replica answered.
    """

    trace_id: int
    span_id: int
    host: int
    replica: str
    began: float
    ended: float
    sent_bytes: int
    received_bytes: int
    hedges: int
    retries: int
    code: str = "OK"
    error: str = ""


@dataclass(frozen=True, slots=True)
class TracedBatch:
    """A traced batch, with the trace of its first traced request; its lookups fill `hosts`."""

    trace: RequestTrace
    hosts: list[HostSpan] = field(default_factory=list)


_batch: ContextVar[TracedBatch | None] = ContextVar("traced_batch", default=None)


@contextmanager
def traced_batch(trace: RequestTrace) -> Iterator[TracedBatch]:
    """Makes the lookups of this thread part of a traced batch."""
    made = TracedBatch(trace)
    token = _batch.set(made)
    try:
        yield made
    finally:
        _batch.reset(token)


def traced_batch_of_thread() -> TracedBatch | None:
    """The batch that this thread runs, if it is traced."""
    return _batch.get()


def new_span_id() -> int:
    """Id of a span that another process will name as its parent; never 0."""
    return secrets.randbits(64) or 1


def traceparent(trace_id: int, span_id: int) -> bytes:
    """Header of a traced call (W3C Trace Context)."""
    return f"00-{trace_id:032x}-{span_id:016x}-01".encode()
