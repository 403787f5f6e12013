"""Spans of requests in OpenTelemetry's form, sent to a collector: OTLP over gRPC.

    inference.GRPCInferenceService/ModelInfer   (server; others: `PredictMethod`)
        decode · queue · lookup · tower · encode
                         rank 0 · rank 1 … · shard host 2 (client) …
                                             sharded_infer.v1.ShardHost/Lookup (server, there)

Of a failed request, the shard hosts' spans are below its own. Only a tracing server imports this
file. Spans are made from timelines after the fact. Each request of a batch has all of its own
spans, and the batch's server spans are linked. Names of attributes are those of OpenTelemetry's
semantic conventions 1.37 or later (rpc.*, http.*); our own begin with `sharded_infer.`.
"""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import monotonic, time_ns

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    Link,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
)
from opentelemetry.util.types import Attributes, AttributeValue

from serving.observability.host_spans import HostSpan
from serving.observability.request_timeline import RequestTimeline
from serving.observability.trace_context import RequestTrace, TraceContext
from serving.status import StatusCode as RpcStatusCode
from sharded_infer.errors import InputError

_SERVICE = "sharded-infer"
_SCOPE = InstrumentationScope("sharded_infer")
_KEPT = TraceFlags(TraceFlags.SAMPLED)
# Codes that are a server's fault, by the conventions for gRPC; others are the client's.
_SERVER_ERRORS = frozenset(
    {"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}
)


class SpanExporter:
    """Makes requests' spans and sends them. Used by one thread; create it after any fork."""

    def __init__(self, endpoint: str | None, place: Mapping[str, int]) -> None:
        """Opens the connection; sends nothing. Without an endpoint, the environment names one.

        `place` of the process becomes attributes, with the prefix `sharded_infer.`. Raises
        InputError for a value of the environment that the exporter cannot use.
        """
        # It would log each failed attempt; final failures are logged elsewhere.
        logging.getLogger("opentelemetry.exporter").setLevel(logging.ERROR)
        self._resource = Resource.create(
            {
                "service.name": os.environ.get("OTEL_SERVICE_NAME") or _SERVICE,
                "process.pid": os.getpid(),
                **{f"sharded_infer.{name}": number for name, number in place.items()},
            }
        )
        self._ids = RandomIdGenerator()
        try:
            self._exporter = OTLPSpanExporter(endpoint=endpoint)
        except Exception as error:
            # Any exception of the library for a variable that it cannot use.
            raise InputError(
                f"the OTEL_EXPORTER_OTLP_ variables cannot be used: {error}"
            ) from error

    def send(self, requests: Sequence[RequestTimeline]) -> bool:
        """Sends the spans of requests; may take seconds. True if the collector has taken them."""
        spans = [span for request in requests for span in self._spans(request)]
        return self._exporter.export(spans) is SpanExportResult.SUCCESS

    def close(self) -> None:
        """Cancels a call in progress, and closes the connection."""
        self._exporter.shutdown()

    def _spans(self, request: RequestTimeline) -> Iterator[ReadableSpan]:
        trace = request.trace
        if trace is None:
            return
        own = _own_context(trace)
        at = _to_nanoseconds(request.started)
        is_error = request.code in _SERVER_ERRORS
        linked = () if request.batch is None else request.batch.linked
        yield self._span(
            request.method.span_name,
            own,
            None if trace.parent is None else _client_context(trace.parent),
            (at(0.0), at(request.whole_seconds)),
            attributes=_attributes(request),
            kind=SpanKind.SERVER,
            status=Status(StatusCode.ERROR, request.error) if is_error else None,
            links=[Link(_own_context(other)) for other in linked],
        )
        # The lookup time of a failed batch is unknown.
        asking = own
        for name, (begin, end) in phase_times(request).items():
            context = self._below(own)
            yield self._span(name, context, own, (at(begin), at(end)))
            if name == "lookup":
                asking = context
            if name == "lookup" and request.batch is not None:
                for rank, (first, last) in _rank_times(request.batch.rank_seconds, end - begin):
                    yield self._span(
                        f"rank {rank}",
                        self._below(context),
                        context,
                        (at(begin + first), at(begin + last)),
                        attributes={"sharded_infer.rank": rank},
                    )
        for one in request.hosts:
            yield self._host_span(one, request, asking, at)

    def _host_span(
        self,
        one: HostSpan,
        request: RequestTimeline,
        parent: SpanContext,
        at: Callable[[float], int],
    ) -> ReadableSpan:
        # The host's own span is below that of the request whose trace the lookup carried.
        is_carrier = one.trace_id == parent.trace_id
        failed = one.code != RpcStatusCode.OK.name
        return self._span(
            f"shard host {one.host}",
            self._below(parent, one.span_id if is_carrier else None),
            parent,
            (at(one.began - request.started), at(one.ended - request.started)),
            attributes={
                "sharded_infer.host": one.host,
                "sharded_infer.version": request.version,
                "sharded_infer.replica": one.replica,
                "sharded_infer.sent_bytes": one.sent_bytes,
                "sharded_infer.received_bytes": one.received_bytes,
                "sharded_infer.hedges": one.hedges,
                "sharded_infer.retries": one.retries,
                "rpc.response.status_code": one.code,
                **({"error.type": one.code} if failed else {}),
            },
            kind=SpanKind.CLIENT,
            status=Status(StatusCode.ERROR, one.error) if failed else None,
        )

    def _below(self, parent: SpanContext, span_id: int | None = None) -> SpanContext:
        return SpanContext(
            parent.trace_id,
            self._ids.generate_span_id() if span_id is None else span_id,
            False,
            parent.trace_flags,
            parent.trace_state,
        )

    def _span(
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        times: tuple[int, int],
        *,
        attributes: Attributes = None,
        kind: SpanKind = SpanKind.INTERNAL,
        status: Status | None = None,
        links: Sequence[Link] = (),
    ) -> ReadableSpan:
        return ReadableSpan(
            name,
            context,
            parent,
            self._resource,
            attributes,
            links=links,
            kind=kind,
            status=status or Status(StatusCode.UNSET),
            start_time=times[0],
            end_time=times[1],
            instrumentation_scope=_SCOPE,
        )


def phase_times(request: RequestTimeline) -> dict[str, tuple[float, float]]:
    """Start and end of each phase of a request, in seconds from its start.

    Between tower and encode the responses of the batch's other requests are written. A refused
    request has fewer phases.
    """
    times = {}
    end = request.decode_seconds
    if end:
        times["decode"] = (0.0, end)
    if request.samples:
        times["queue"] = (end, end + request.queue_seconds)
        end += request.queue_seconds
    if request.batch is not None:
        times["lookup"] = (end, end + request.lookup_seconds)
        end += request.lookup_seconds
        times["tower"] = (end, end + request.tower_seconds)
        whole = request.whole_seconds
        times["encode"] = (whole - request.encode_seconds, whole)
    return times


def _rank_times(
    rank_seconds: Mapping[int, float], whole: float
) -> Iterator[tuple[int, tuple[float, float]]]:
    # Sequential on a core; where that is impossible, they ran in parallel.
    in_turn = sum(rank_seconds.values()) <= whole
    begin = 0.0
    for rank, seconds in sorted(rank_seconds.items()):
        yield rank, (begin, begin + seconds)
        begin += seconds if in_turn else 0.0


def _call_attributes(request: RequestTimeline) -> dict[str, AttributeValue]:
    method = request.method
    if method.route:
        return {
            "http.request.method": "POST",
            "http.route": method.route,
            "http.response.status_code": RpcStatusCode[request.code].http_status,
        }
    return {
        "rpc.system.name": "grpc",
        "rpc.method": method.span_name,
        "rpc.response.status_code": request.code,
    }


def _attributes(request: RequestTimeline) -> dict[str, AttributeValue]:
    attributes = _call_attributes(request)
    if request.code in _SERVER_ERRORS:
        attributes["error.type"] = request.code
    names = ["request_id"] if request.request_id else []
    names += ["model", "version", "executor"] if request.model else []
    names += ["samples", "requests_ahead"] if request.samples else []
    attributes |= {f"sharded_infer.{name}": getattr(request, name) for name in names}
    if batch := request.batch:
        for name in ("requests", "samples", "padded_samples"):
            attributes[f"sharded_infer.batch.{name}"] = getattr(batch, name)
    return attributes


def _own_context(trace: RequestTrace) -> SpanContext:
    state = None if trace.parent is None else _state(trace.parent)
    return SpanContext(trace.trace_id, trace.span_id, False, _KEPT, state)


def _client_context(parent: TraceContext) -> SpanContext:
    flags = TraceFlags(TraceFlags.SAMPLED if parent.sampled else TraceFlags.DEFAULT)
    return SpanContext(parent.trace_id, parent.span_id, True, flags, _state(parent))


def _state(parent: TraceContext) -> TraceState | None:
    return TraceState.from_header([parent.state]) if parent.state else None


def _to_nanoseconds(started: float) -> Callable[[float], int]:
    """Converts seconds from a start on the monotonic clock to nanoseconds since 1970."""
    base = time_ns() + round((started - monotonic()) * 1e9)
    return lambda seconds: base + round(seconds * 1e9)
