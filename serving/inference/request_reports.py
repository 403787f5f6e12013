"""Spans of traced requests, and log lines of slow ones.

If neither is switched on, there is no `RequestReports`, and each request costs one `is None` check.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING

from serving.host.thread_usage import Reading, usage_between
from serving.inference.predict_call import PredictCall, short_id
from serving.metrics.version_metrics import Answered
from serving.observability.request_timeline import BatchFacts, RequestTimeline
from serving.observability.slow_request import judge
from serving.observability.slow_request_log import SlowRequestLog
from serving.observability.trace_context import RequestTrace
from serving.protocol.predict_method import PredictMethod
from serving.protocol.request_header import RequestHeader
from serving.versions.loaded_version import LoadedVersion
from sharded_infer.engines.executor import RequestResult

if TYPE_CHECKING:
    from serving.observability.tracer import Tracer

_log = logging.getLogger("sharded_infer")
_NEVER = float("inf")
# A request is slow if it takes this many times its model's latency objective.
_SLOW_OBJECTIVES = 2.0


class RequestReports:
    """Reports on the requests of one process. Thread-safe.

    With `traces`, requests are traced, and need metadata.
    """

    def __init__(self, tracer: "Tracer | None", slow_request_ms: float | None) -> None:
        """Sets which requests are reported.

        Args:
            tracer: None if requests are not traced.
            slow_request_ms: requests that take this long are slow. 0: none is slow; None: the limit
                is twice the model's latency objective.
        """
        self._tracer = tracer
        self._slow_request_ms = slow_request_ms
        self._slow_log = SlowRequestLog()
        self.traces = tracer is not None

    @property
    def bound(self) -> int:
        """The `Tracer.bound`; 0 if nothing is traced."""
        return 0 if self._tracer is None else self._tracer.bound

    def begin(
        self, metadata: Iterable[tuple[str, str | bytes]], *, drawn: bool = False
    ) -> RequestTrace | None:
        """Starts a request's trace by `Tracer.begin`; None if it is not traced."""
        return None if self._tracer is None else self._tracer.begin(metadata, drawn=drawn)

    def has_slow(self, version: LoadedVersion, slowest: float) -> bool:
        """True if a duration in seconds is slow for a request of a version."""
        return slowest >= slow_after(version, self._slow_request_ms)

    def answered(
        self,
        told: Sequence[tuple[PredictCall, RequestResult]],
        counts: Sequence[Answered],
        usage: tuple[Reading, Reading],
    ) -> None:
        """Reports on a batch's requests, after their answers are encoded.

        Args:
            counts: sizes and times of the same calls.
            usage: of the batch's thread, before its lookups and after its tower.
        """
        try:
            calls = [call for call, _ in told]
            if not calls:
                return
            slow_seconds = slow_after(calls[0].version, self._slow_request_ms)
            for (call, execution), count in zip(told, counts, strict=True):
                if call.trace is not None or count[6] >= slow_seconds:
                    facts = _facts(call, calls, execution, usage)
                    self._report(call, _answered(call, count, facts), count[6] >= slow_seconds)
        except Exception:
            # A bug of ours must not fail requests that have been answered.
            _log.exception("internal error in telling of a batch")

    def failed(self, call: PredictCall, code: str, error: str) -> None:
        """Reports on a decoded request that failed, by its gRPC code's name and message."""
        if call.trace is None or self._tracer is None:
            return
        now = monotonic()
        model = call.version.model
        self._tracer.record(
            RequestTimeline(
                model=model.name,
                version=model.version,
                request_id=short_id(call.header.request_id),
                executor=call.queue.policy.mode.value,
                samples=call.batch_size,
                started=call.arrived,
                whole_seconds=now - call.arrived,
                decode_seconds=call.decoded - call.arrived,
                queue_seconds=max(0.0, (call.started or now) - call.decoded),
                requests_ahead=call.requests_ahead,
                code=code,
                error=error,
                method=call.method,
                hosts=tuple(call.hosts),
                trace=call.trace,
            )
        )

    def refused(
        self,
        trace: RequestTrace,
        header: RequestHeader | None,
        loaded_version: LoadedVersion | None,
        *,
        method: PredictMethod,
        code: str,
        error: str,
        began: float,
    ) -> None:
        """Reports on a request that was refused before it was fully decoded.

        Args:
            header: None if it could not be read.
            loaded_version: None if it is not known.
            code: name of the gRPC status code.
            began: when its message had arrived, on the monotonic clock.
        """
        if self._tracer is None:
            return
        self._tracer.record(
            RequestTimeline(
                model="" if loaded_version is None else loaded_version.model.name,
                version=0 if loaded_version is None else loaded_version.model.version,
                request_id="" if header is None else short_id(header.request_id),
                executor="" if loaded_version is None else loaded_version.queue.policy.mode.value,
                samples=0,
                started=began,
                whole_seconds=monotonic() - began,
                code=code,
                error=error,
                method=method,
                trace=trace,
            )
        )

    def _report(self, call: PredictCall, request: RequestTimeline, slow: bool) -> None:
        metrics = call.version.metrics
        if request.trace is not None and self._tracer is not None:
            trace_id = request.trace.trace_id.to_bytes(16, "big")
            metrics.exemplar(request.whole_seconds, trace_id)
            self._tracer.record(request)
        if slow:
            slow_cause = judge(request)
            metrics.slow(slow_cause.phase)
            self._slow_log.tell(request, slow_cause, monotonic())


def slow_after(loaded_version: LoadedVersion, slow_request_ms: float | None) -> float:
    """Seconds from which a version's request is slow; infinity if none is.

    Args:
        slow_request_ms: 0: none is slow; None: twice the model's objective.
    """
    if slow_request_ms is None:
        return _SLOW_OBJECTIVES * loaded_version.model.spec.serving.latency_objective_ms / 1e3
    return slow_request_ms / 1e3 if slow_request_ms else _NEVER


def _answered(call: PredictCall, count: Answered, facts: BatchFacts) -> RequestTimeline:
    samples, decode, queue, lookup, tower, encode, whole, _ = count
    model = call.version.model
    return RequestTimeline(
        model=model.name,
        version=model.version,
        request_id=short_id(call.header.request_id),
        executor=call.queue.policy.mode.value,
        samples=samples,
        started=call.arrived,
        whole_seconds=whole,
        decode_seconds=decode,
        queue_seconds=queue,
        lookup_seconds=lookup,
        tower_seconds=tower,
        encode_seconds=encode,
        requests_ahead=call.requests_ahead,
        method=call.method,
        batch=facts,
        hosts=tuple(call.hosts),
        trace=call.trace,
    )


def _facts(
    call: PredictCall,
    calls: Sequence[PredictCall],
    execution: RequestResult,
    usage: tuple[Reading, Reading],
) -> BatchFacts:
    samples = sum(other.batch_size for other in calls)
    costs = call.queue.costs
    return BatchFacts(
        requests=len(calls),
        samples=samples,
        padded_samples=call.version.model.engine.run_size(samples),
        alone_seconds=costs.predicted(call.samples),
        together_seconds=costs.predicted(sum(other.samples for other in calls)),
        usage=usage_between(*usage),
        rank_seconds=_rank_seconds(execution),
        linked=()
        if call.trace is None
        else tuple(o.trace for o in calls if o.trace is not None and o is not call),
    )


def _rank_seconds(execution: RequestResult) -> Mapping[int, float]:
    seconds: dict[int, float] = {}
    for rank, _, _, spent in execution.work.steps:
        seconds[rank] = seconds.get(rank, 0.0) + spent
    return seconds
