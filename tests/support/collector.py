"""A collector of OpenTelemetry traces in the test's process: OTLP over gRPC, real protobuf."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from tests.support.waiting import until


@dataclass(frozen=True, slots=True)
class Span:
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    trace_state: str
    kind: int
    start: int
    end: int
    status: int
    attributes: dict[str, Any]
    links: tuple[tuple[str, str], ...]
    resource: dict[str, Any]

    @property
    def seconds(self) -> float:
        return (self.end - self.start) / 1e9


@dataclass(slots=True)
class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Received spans, in the order of arrival."""

    url: str = ""
    spans: list[Span] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - the protocol's name
        with self._lock:
            for group in request.resource_spans:
                resource = _attributes(group.resource.attributes)
                for scope in group.scope_spans:
                    self.spans += [_span(span, resource) for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()

    def trace(self, trace_id: str) -> dict[str, Span]:
        """Spans of a trace by name, after they arrive: a request's spans arrive together."""
        until(lambda: any(s.trace_id == trace_id for s in self.spans), f"trace {trace_id}")
        found = [span for span in self.spans if span.trace_id == trace_id]
        assert len({span.name for span in found}) == len(found)
        return {span.name: span for span in found}

    def servers(self) -> list[Span]:
        return [span for span in self.spans if span.kind == SERVER]


SERVER = 2


def _span(span: Any, resource: dict[str, Any]) -> Span:
    return Span(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.trace_state,
        span.kind,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        span.status.code,
        _attributes(span.attributes),
        tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
        resource,
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


@contextmanager
def running_collector() -> Iterator[Collector]:
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    collector.url = f"http://127.0.0.1:{port}"
    server.start()
    try:
        yield collector
    finally:
        server.stop(None).wait()
