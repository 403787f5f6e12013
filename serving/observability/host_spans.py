"""Spans of a batch's lookups on shard hosts, for the batches that have a traced request.

The lookups lie below the engine, which knows nothing of traces: a batch's thread says before it
runs the batch that it is traced, and the lookups, on the same thread, leave their spans there.
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
        trace_id: that the lookup carried, with `span_id` as the parent of the host's own span.
        host: its number in the plans.
        replica: address of the one whose answer was taken; of a lookup that failed, all that were
            asked, with commas between.
        sent_bytes: of the messages to all replicas that were asked.
        hedges: replicas that were asked because it was late.
        retries: replicas that were asked because others failed.
        code: name of the gRPC status code.
        error: why no replica answered; empty: one did.
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
    """A batch that is traced.

    Attributes:
        trace: of its first traced request, which its lookups carry.
        hosts: filled by its lookups.
    """

    trace: RequestTrace
    hosts: list[HostSpan] = field(default_factory=list)


_batch: ContextVar[TracedBatch | None] = ContextVar("traced_batch", default=None)


@contextmanager
def traced_batch(trace: RequestTrace) -> Iterator[TracedBatch]:
    """The lookups of this thread belong to a batch that is traced."""
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
    """Of a span that another process will name as its parent; never 0."""
    return secrets.randbits(64) or 1


def traceparent(trace_id: int, span_id: int) -> bytes:
    """The header of a call that is traced (W3C Trace Context)."""
    return f"00-{trace_id:032x}-{span_id:016x}-01".encode()
