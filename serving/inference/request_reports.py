"""Spans of traced requests, and log lines of slow ones.

If neither is switched on, there is no `RequestReports`, and each request costs one `is None` check.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from serving.abi.counting import AnsweredRequest
from serving.host.thread_usage import Reading, usage_between
from serving.inference.call_batch import CallFacts
from serving.observability.host_spans import HostSpan
from serving.observability.request_timeline import BatchFacts, RequestTimeline
from serving.observability.slow_request import judge
from serving.observability.slow_request_log import SlowRequestLog
from serving.observability.trace_context import RequestTrace
from serving.protocol.predict_method import PredictMethod
from serving.protocol.request_header import RequestHeader
from serving.status import Status
from serving.versions.loaded_version import LoadedVersion
from sharded_infer.engines.executor import RequestResult

if TYPE_CHECKING:
    from serving.observability.tracer import Tracer

_log = logging.getLogger("sharded_infer")
_NEVER = float("inf")
# A request is slow if it takes this many times its model's latency objective.
_SLOW_OBJECTIVES = 2.0
# Clients choose request ids; logs and spans keep at most this many characters.
_LONGEST_ID = 128


class TracedRequest(NamedTuple):
    """A traced request's ids, and its method."""

    trace: RequestTrace
    method: PredictMethod


class AnsweredCall(NamedTuple):
    """A call of a batch, its trace if it has one, and what was counted of it."""

    facts: CallFacts
    traced: TracedRequest | None
    counted: AnsweredRequest


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
        self,
        metadata: Iterable[tuple[str, str | bytes]],
        method: PredictMethod,
        *,
        drawn: bool = False,
    ) -> TracedRequest | None:
        """Starts a request's trace by `Tracer.begin`; None if it is not traced."""
        trace = None if self._tracer is None else self._tracer.begin(metadata, drawn=drawn)
        return None if trace is None else TracedRequest(trace, method)

    def has_slow(self, version: LoadedVersion, slowest: float) -> bool:
        """True if a duration in seconds is slow for a request of a version."""
        return slowest >= slow_after(version, self._slow_request_ms)

    def answered(
        self,
        version: LoadedVersion,
        calls: Sequence[AnsweredCall],
        ran: RequestResult,
        usage: tuple[Reading, Reading],
        hosts: Sequence[HostSpan],
    ) -> None:
        """Reports on a batch's calls, after their answers are encoded.

        Args:
            usage: of the batch's thread, before its lookups and after its tower.
            hosts: lookups of the batch on shard hosts, if it is traced.
        """
        slow_seconds = slow_after(version, self._slow_request_ms)
        for call in calls:
            whole = call.counted.seconds[5]
            if call.traced is None and whole < slow_seconds:
                continue
            facts = _facts(version, call, calls, ran, usage)
            timeline = _answered(version, call, facts, hosts)
            self._report(version, timeline, whole >= slow_seconds)

    def failed(
        self,
        version: LoadedVersion,
        call: CallFacts,
        traced: TracedRequest,
        started: float,
        status: Status,
        hosts: Sequence[HostSpan],
    ) -> None:
        """Reports on a decoded call that failed; `started`: when its batch began, or 0."""
        if self._tracer is None:
            return
        now = monotonic()
        self._tracer.record(
            RequestTimeline(
                model=version.model.name,
                version=version.model.version,
                request_id=short_id(call.request_id),
                executor=version.queue.policy.mode.value,
                samples=call.samples,
                started=call.arrived,
                whole_seconds=now - call.arrived,
                decode_seconds=call.decoded - call.arrived,
                queue_seconds=max(0.0, (started or now) - call.decoded),
                requests_ahead=call.ahead,
                code=status.code.name,
                error=status.message,
                method=traced.method,
                hosts=tuple(hosts),
                trace=traced.trace,
            )
        )

    def refused(
        self,
        traced: TracedRequest,
        header: RequestHeader | None,
        loaded_version: LoadedVersion | None,
        *,
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
                method=traced.method,
                trace=traced.trace,
            )
        )

    def _report(self, version: LoadedVersion, request: RequestTimeline, slow: bool) -> None:
        metrics = version.metrics
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


def _answered(
    version: LoadedVersion, call: AnsweredCall, facts: BatchFacts, hosts: Sequence[HostSpan]
) -> RequestTimeline:
    decode, queue, lookup, tower, encode, whole = call.counted.seconds
    traced = call.traced
    return RequestTimeline(
        model=version.model.name,
        version=version.model.version,
        request_id=short_id(call.facts.request_id),
        executor=version.queue.policy.mode.value,
        samples=call.facts.samples,
        started=call.facts.arrived,
        whole_seconds=whole,
        decode_seconds=decode,
        queue_seconds=queue,
        lookup_seconds=lookup,
        tower_seconds=tower,
        encode_seconds=encode,
        requests_ahead=call.facts.ahead,
        method=call.facts.method if traced is None else traced.method,
        batch=facts,
        hosts=tuple(hosts),
        trace=None if traced is None else traced.trace,
    )


def _facts(
    version: LoadedVersion,
    call: AnsweredCall,
    calls: Sequence[AnsweredCall],
    execution: RequestResult,
    usage: tuple[Reading, Reading],
) -> BatchFacts:
    samples = sum(other.facts.samples for other in calls)
    costs = version.queue.costs
    others = [other.traced for other in calls if other is not call]
    return BatchFacts(
        requests=len(calls),
        samples=samples,
        padded_samples=version.model.engine.run_size(samples),
        alone_seconds=costs.predicted(call.facts.work),
        together_seconds=costs.predicted(sum(other.facts.work for other in calls)),
        usage=usage_between(*usage),
        rank_seconds=_rank_seconds(execution),
        linked=()
        if call.traced is None
        else tuple(other.trace for other in others if other is not None),
    )


def _rank_seconds(execution: RequestResult) -> Mapping[int, float]:
    seconds: dict[int, float] = {}
    for rank, _, _, spent in execution.work.steps:
        seconds[rank] = seconds.get(rank, 0.0) + spent
    return seconds


def short_id(request_id: str) -> str:
    """Part of a client's request id that logs and spans contain."""
    return request_id if len(request_id) <= _LONGEST_ID else request_id[:_LONGEST_ID] + "…"
