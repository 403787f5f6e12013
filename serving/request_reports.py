"""What is told of single requests, beside the counts: spans of traced ones, lines of slow ones.

With neither switched on there is no such object, and requests pass one `is None` check.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from time import monotonic

from serving.call import Call, short_id
from serving.job import Job
from serving.predict_method import PredictMethod
from serving.request_header import RequestHeader
from serving.request_timeline import BatchFacts, RequestTimeline
from serving.slow_request import judge
from serving.slow_request_log import SlowRequestLog
from serving.snapshot import Snapshot
from serving.thread_usage import Reading, usage_between
from serving.trace_sampling import RequestTrace
from serving.tracer import Tracer
from serving.version_metrics import Answered
from sharded_infer.executor import Execution

_log = logging.getLogger("sharded_infer")
_NEVER = float("inf")
# A request is slow at so many times what its model is meant to take.
_SLOW_OBJECTIVES = 2.0


class RequestReports:
    """Tells of the requests of one process. Any thread may call.

    Attributes:
        traces: whether requests are traced: their metadata is wanted then.
    """

    def __init__(self, tracer: Tracer | None, slow_request_ms: float | None) -> None:
        """Begins with nothing told.

        Args:
            tracer: None: requests are not traced.
            slow_request_ms: from which time on a request is slow; 0: none is; None: twice its
                model's latency objective.
        """
        self._tracer = tracer
        self._slow_request_ms = slow_request_ms
        self._slow_log = SlowRequestLog()
        self.traces = tracer is not None

    def begin(self, metadata: Iterable[tuple[str, str | bytes]]) -> RequestTrace | None:
        """A request's trace, if it is traced."""
        return None if self._tracer is None else self._tracer.begin(metadata)

    def answered(
        self,
        told: Sequence[tuple[Job, Execution]],
        counts: Sequence[Answered],
        usage: tuple[Reading, Reading],
    ) -> None:
        """Tells of a batch's requests, after their responses are written.

        Args:
            told: of the batch, with what each got.
            counts: what each took.
            usage: of the batch's thread, before its lookups and after its tower.
        """
        try:
            calls: list[Call] = [job.work for job, _ in told]
            if not calls:
                return
            slow_seconds = slow_after(calls[0].snapshot, self._slow_request_ms)
            for call, (_, execution), count in zip(calls, told, counts, strict=True):
                if call.trace is not None or count[6] >= slow_seconds:
                    facts = _facts(call, calls, execution, usage)
                    self._tell(call, _answered(call, count, facts), count[6] >= slow_seconds)
        except Exception:
            # A bug of ours must not fail requests that have been answered.
            _log.exception("internal error in telling of a batch")

    def failed(self, call: Call, code: str, error: str, *, started: float) -> None:
        """Tells of a request that was read and is answered with an error.

        Args:
            call: the request.
            code: the gRPC status code's name.
            error: what its client is told.
            started: when its batch began, on the monotonic clock; 0: never.
        """
        if call.trace is None or self._tracer is None:
            return
        now = monotonic()
        model = call.snapshot.model
        self._tracer.record(
            RequestTimeline(
                model=model.name,
                version=model.version,
                request_id=short_id(call.header.request_id),
                executor=call.snapshot.lane.policy.mode.value,
                samples=call.model_input.batch_size,
                started=call.started,
                whole_seconds=now - call.started,
                decode_seconds=call.decoded - call.started,
                queue_seconds=max(0.0, (started or now) - call.decoded),
                requests_ahead=call.requests_ahead,
                code=code,
                error=error,
                method=call.method,
                trace=call.trace,
            )
        )

    def refused(
        self,
        trace: RequestTrace,
        header: RequestHeader | None,
        snapshot: Snapshot | None,
        *,
        method: PredictMethod,
        code: str,
        error: str,
        began: float,
    ) -> None:
        """Tells of a request that was not read to its end.

        Args:
            trace: its trace.
            header: what its message says beside its inputs, if that was read.
            snapshot: the version that was asked, if it is known.
            method: by which it came.
            code: the gRPC status code's name.
            error: what its client is told.
            began: when its message was there, on the monotonic clock.
        """
        if self._tracer is None:
            return
        self._tracer.record(
            RequestTimeline(
                model="" if snapshot is None else snapshot.model.name,
                version=0 if snapshot is None else snapshot.model.version,
                request_id="" if header is None else short_id(header.request_id),
                executor="" if snapshot is None else snapshot.lane.policy.mode.value,
                samples=0,
                started=began,
                whole_seconds=monotonic() - began,
                code=code,
                error=error,
                method=method,
                trace=trace,
            )
        )

    def _tell(self, call: Call, request: RequestTimeline, slow: bool) -> None:
        metrics = call.snapshot.metrics
        if request.trace is not None and self._tracer is not None:
            trace_id = request.trace.trace_id.to_bytes(16, "big")
            metrics.exemplar(request.whole_seconds, trace_id)
            self._tracer.record(request)
        if slow:
            verdict = judge(request)
            metrics.slow(verdict.phase)
            self._slow_log.tell(request, verdict, monotonic())


def slow_after(snapshot: Snapshot, slow_request_ms: float | None) -> float:
    """From how many seconds on a version's request is slow; infinity: none is.

    Args:
        snapshot: the version.
        slow_request_ms: what the server is told; 0: none is; None: twice the model's objective.
    """
    if slow_request_ms is None:
        return _SLOW_OBJECTIVES * snapshot.model.spec.serving.latency_objective_ms / 1e3
    return slow_request_ms / 1e3 if slow_request_ms else _NEVER


def _answered(call: Call, count: Answered, facts: BatchFacts) -> RequestTimeline:
    samples, decode, queue, lookup, tower, encode, whole, _ = count
    model = call.snapshot.model
    return RequestTimeline(
        model=model.name,
        version=model.version,
        request_id=short_id(call.header.request_id),
        executor=call.snapshot.lane.policy.mode.value,
        samples=samples,
        started=call.started,
        whole_seconds=whole,
        decode_seconds=decode,
        queue_seconds=queue,
        lookup_seconds=lookup,
        tower_seconds=tower,
        encode_seconds=encode,
        requests_ahead=call.requests_ahead,
        method=call.method,
        batch=facts,
        trace=call.trace,
    )


def _facts(
    call: Call, calls: Sequence[Call], execution: Execution, usage: tuple[Reading, Reading]
) -> BatchFacts:
    samples = sum(other.model_input.batch_size for other in calls)
    costs = call.snapshot.lane.costs
    return BatchFacts(
        requests=len(calls),
        samples=samples,
        padded_samples=call.snapshot.model.engine.run_size(samples),
        alone_seconds=costs.predicted(call.model_input.batch_size),
        together_seconds=costs.predicted(samples),
        usage=usage_between(*usage),
        rank_seconds=_rank_seconds(execution),
        linked=()
        if call.trace is None
        else tuple(o.trace for o in calls if o.trace is not None and o is not call),
    )


def _rank_seconds(execution: Execution) -> Mapping[int, float]:
    seconds: dict[int, float] = {}
    for rank, _, _, spent in execution.work.steps:
        seconds[rank] = seconds.get(rank, 0.0) + spent
    return seconds
