import socket
import subprocess
import sys
import time
from dataclasses import replace

import pytest

pytest.importorskip("opentelemetry.sdk", reason="the extra `tracing` is not installed")

import itertools

from serving.observability.request_timeline import RequestTimeline
from serving.observability.span_exporter import SpanExporter
from serving.observability.trace_context import RequestTrace, TraceContext
from serving.observability.trace_settings import TraceSampling, TraceSettings
from serving.observability.tracer import start_tracing
from serving.protocol.predict_method import PredictMethod
from sharded_infer.errors import InputError
from tests.serving.scheduler.timelines import request, traced
from tests.support.collector import Collector, Span, running_collector
from tests.support.servers import environment

METHOD = PredictMethod.MODEL_INFER.span_name

CLIENT = TraceContext(0xABC, 0xDEF, True, "vendor=1,other=2")
OURS = RequestTrace(0xABC, 0x123, CLIENT)
TRACE = f"{0xABC:032x}"


def sent(*requests: RequestTimeline) -> Collector:
    with running_collector() as collector:
        exporter = SpanExporter(collector.url, {"worker": 1})
        assert exporter.send(requests)
        exporter.close()
    return collector


def by_name(collector: Collector) -> dict[str, Span]:
    return {span.name: span for span in collector.spans}


def test_a_request_is_a_tree_below_its_clients_span() -> None:
    spans = by_name(sent(traced(OURS, ranks={1: 0.0004, 0: 0.0003})))
    server = spans[METHOD]
    assert (server.trace_id, server.span_id, server.kind) == (TRACE, f"{0x123:016x}", 2)
    assert server.parent_id == f"{0xDEF:016x}" and server.trace_state == CLIENT.state
    assert list(spans) == [
        METHOD, "decode", "queue", "lookup", "rank 0", "rank 1", "tower", "encode",
    ]  # fmt: skip
    below = {name: spans[name].parent_id for name in spans if name != METHOD}
    ranks = {name: below.pop(name) for name in ("rank 0", "rank 1")}
    assert set(below.values()) == {server.span_id}
    assert set(ranks.values()) == {spans["lookup"].span_id}
    assert len({span.span_id for span in spans.values()}) == 8
    assert {span.trace_id for span in spans.values()} == {TRACE}


@pytest.mark.parametrize(("code", "status"), [("OK", 200), ("NOT_FOUND", 404), ("INTERNAL", 500)])
def test_a_call_over_http_is_named_by_its_route(code: str, status: int) -> None:
    route = "/v2/models/{model}/versions/{version}/infer"
    came = replace(traced(OURS), method=PredictMethod.HTTP_INFER_VERSION, code=code)
    server = by_name(sent(came))[f"POST {route}"]
    assert server.attributes["http.route"] == route
    assert server.attributes["http.request.method"] == "POST"
    assert server.attributes["http.response.status_code"] == status
    assert server.attributes.get("error.type") == ("INTERNAL" if status == 500 else None)
    assert not any(key.startswith("rpc.") for key in server.attributes)


def test_phases_follow_each_other_and_add_up() -> None:
    spans = by_name(sent(traced(OURS, ranks={0: 0.0003, 1: 0.0004})))
    server = spans[METHOD]
    phases = [spans[name] for name in ("decode", "queue", "lookup", "tower", "encode")]
    assert server.seconds == pytest.approx(0.0036, abs=1e-8)
    assert sum(phase.seconds for phase in phases) == pytest.approx(server.seconds, abs=1e-7)
    assert phases[0].start == server.start and phases[-1].end == server.end
    for before, after in itertools.pairwise(phases):
        assert abs(after.start - before.end) <= 100
    # Ranks take turns on one core.
    assert spans["rank 0"].start == spans["lookup"].start
    assert abs(spans["rank 1"].start - spans["rank 0"].end) <= 100
    assert spans["rank 1"].end <= spans["lookup"].end
    # These cannot have taken turns.
    spans = by_name(sent(traced(OURS, ranks={0: 0.0009, 1: 0.0008})))
    assert spans["rank 0"].start == spans["rank 1"].start == spans["lookup"].start


def test_times_are_of_the_day_and_other_rpcs_have_their_names() -> None:
    method = PredictMethod.MODEL_STREAM_INFER
    early = replace(traced(OURS), started=time.monotonic() - 10.0, method=method)
    span = by_name(sent(early))["inference.GRPCInferenceService/ModelStreamInfer"]
    assert time.time() - span.start / 1e9 == pytest.approx(10.0, abs=5.0)
    assert span.attributes["rpc.method"] == span.name


def test_attributes_say_what_was_asked_and_what_ran() -> None:
    server = by_name(sent(traced(OURS)))[METHOD]
    assert server.attributes == {
        "rpc.system.name": "grpc",
        "rpc.method": METHOD,
        "rpc.response.status_code": "OK",
        "sharded_infer.request_id": "a-1",
        "sharded_infer.model": "ranker",
        "sharded_infer.version": 3,
        "sharded_infer.executor": "auto",
        "sharded_infer.samples": 16,
        "sharded_infer.requests_ahead": 0,
        "sharded_infer.batch.requests": 1,
        "sharded_infer.batch.samples": 16,
        "sharded_infer.batch.padded_samples": 16,
    }
    assert server.resource["service.name"] == "sharded-infer"
    assert server.resource["sharded_infer.worker"] == 1


def test_requests_of_one_batch_are_linked_to_each_other() -> None:
    other = RequestTrace(0x999, 0x888)
    servers = sent(traced(OURS, linked=(other,)), traced(other, linked=(OURS,))).servers()
    assert [span.links for span in servers] == [
        ((f"{0x999:032x}", f"{0x888:016x}"),),
        ((TRACE, f"{0x123:016x}"),),
    ]
    assert servers[1].parent_id == ""


@pytest.mark.parametrize(
    ("code", "status"), [("DEADLINE_EXCEEDED", 2), ("INTERNAL", 2), ("INVALID_ARGUMENT", 0)]
)
def test_an_error_is_the_servers_or_the_clients(code: str, status: int) -> None:
    failed = request(trace=OURS, code=code, error="why", batch=None)
    spans = by_name(sent(failed))
    assert list(spans) == [METHOD, "decode", "queue"]
    assert spans[METHOD].status == status
    assert spans[METHOD].attributes["rpc.response.status_code"] == code
    assert ("error.type" in spans[METHOD].attributes) is (status == 2)


def test_spans_for_a_dead_collector_are_counted() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        dropped: list[int] = []
        settings = TraceSettings(TraceSampling(1.0), url)
        tracer = start_tracing(settings, {"worker": 0}, dropped.append)
        for _ in range(3000):
            trace = tracer.begin(())
            assert trace is not None
            tracer.record(traced(trace))
        tracer.stop()
    assert sum(dropped) >= 900


def test_a_variable_that_cannot_be_used_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "soon")
    with pytest.raises(InputError, match="variables cannot be used"):
        SpanExporter("http://127.0.0.1:1", {"worker": 0})


def test_a_server_without_traces_does_not_import_opentelemetry() -> None:
    found = "[name for name in sys.modules if 'opentelemetry' in name]"
    words = f"import sys, serving.commands.serve; print({found})"
    done = subprocess.run(
        [sys.executable, "-c", words], capture_output=True, text=True, check=True, env=environment()
    )
    assert done.stdout == "[]\n"
