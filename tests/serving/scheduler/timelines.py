from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from serving.host.thread_usage import ThreadUsage
from serving.observability.request_timeline import BatchFacts, RequestTimeline
from serving.observability.trace_context import RequestTrace

# A request alone in its batch of 3 ms: 1 ms of lookups, 2 ms of tower; all of it on its core.
QUIET = ThreadUsage(0.003, 0.003, 0, 0, 0)
ALONE = BatchFacts(1, 16, 16, 0.003, 0.003, QUIET)
REQUEST = RequestTimeline(
    model="ranker",
    version=3,
    request_id="a-1",
    executor="auto",
    samples=16,
    started=0.0,
    whole_seconds=0.0036,
    decode_seconds=0.0002,
    queue_seconds=0.0001,
    lookup_seconds=0.001,
    tower_seconds=0.002,
    encode_seconds=0.0003,
    batch=ALONE,
)


def request(**changes: Any) -> RequestTimeline:
    """The request, changed; the whole grows by the growth of its phases."""
    phases = ("decode", "queue", "lookup", "tower", "encode")
    grown = sum(
        changes[f"{phase}_seconds"] - getattr(REQUEST, f"{phase}_seconds")
        for phase in phases
        if f"{phase}_seconds" in changes
    )
    changes.setdefault("whole_seconds", REQUEST.whole_seconds + grown)
    return replace(REQUEST, **changes)


def traced(
    trace: RequestTrace, *, linked: tuple[RequestTrace, ...] = (), ranks: Mapping[int, float] = {}
) -> RequestTimeline:
    batch = replace(ALONE, linked=linked, rank_seconds=ranks)
    return request(trace=trace, batch=batch)
