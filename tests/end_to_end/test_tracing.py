"""Traces of real server processes, from the outside."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import grpc
import numpy as np
import pytest

pytest.importorskip("opentelemetry.sdk", reason="the extra `tracing` is not installed")

from tests.support.collector import SERVER, Collector, running_collector
from tests.support.server_pages import fetch
from tests.support.servers import (
    DENSE_WIDTH,
    MODEL,
    Ranker,
    RunningServer,
    good_inputs,
    infer_request,
    json_inputs,
    running_server,
)

METHOD = "inference.GRPCInferenceService/ModelInfer"
STREAM_METHOD = "inference.GRPCInferenceService/ModelStreamInfer"
PHASES = ("decode", "queue", "lookup", "tower", "encode")
STATE = "vendor=1"


@dataclass(frozen=True, slots=True)
class Traced:
    """A server that traces what its clients trace, and its collector."""

    server: RunningServer
    collector: Collector

    def ask(self, number: int, **changes: Any) -> float:
        """One request with a trace of its own; the seconds that its client waited."""
        metadata = [("traceparent", parent_of(number)), ("tracestate", STATE)]
        words = {"request_id": f"request-{number}", **changes}
        with self.server.stub() as stub:
            began = time.monotonic()
            stub.ModelInfer(infer_request(good_inputs(5), **words), metadata=metadata)
            return time.monotonic() - began

    def ask_over_http(self, number: int, model: str = MODEL, path: str = "infer") -> int:
        """One request to the REST port with a trace of its own; the status of its answer."""
        dense = {"dense": np.zeros((3, DENSE_WIDTH), np.float32)}
        body = json.dumps({"id": f"request-{number}", "inputs": json_inputs(dense)}).encode()
        url = f"{self.server.http_url}/v2/models/{model}/{path}"
        headers = {"traceparent": parent_of(number), "tracestate": STATE}
        status, answer, _ = fetch(url, body, headers)
        assert status != 200 or json.loads(answer)["outputs"]
        return status


def trace_of(number: int) -> str:
    return f"{(0x4BF92F3577B34DA6 << 64) + number:032x}"


def parent_of(number: int, sampled: bool = True) -> str:
    return f"00-{trace_of(number)}-{number:016x}-0{int(sampled)}"


@pytest.fixture(scope="module")
def traced(ranker: Ranker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    options: tuple[object, ...] = (
        "--workers", 2, "--executor", "inline", "--slots", 1,
        "--trace-ratio", 0, "--slow-request-ms", 3,
    )  # fmt: skip
    log = tmp_path_factory.mktemp("traced") / "stderr"
    with running_collector() as collector:
        options += ("--trace-endpoint", collector.url)
        with running_server(ranker.repository, log, *options) as server:
            yield Traced(server, collector)
    assert "internal error" not in log.read_text()


def test_a_request_is_traced_below_its_clients_span_and_adds_up(traced: Traced) -> None:
    waited = traced.ask(1)
    spans = traced.collector.trace(trace_of(1))
    server = spans[METHOD]
    assert server.parent_id == f"{1:016x}" and server.trace_state == STATE
    assert tuple(name for name in spans if name in PHASES) == PHASES
    phases = [spans[name] for name in PHASES]
    assert {span.parent_id for span in phases} == {server.span_id}
    assert all(after.start >= before.end - 1000 for before, after in pairwise(phases))
    assert server.start == phases[0].start and server.end == phases[-1].end
    assert sum(span.seconds for span in phases) <= server.seconds + 1e-5
    # Before and after it is the transport.
    assert server.seconds <= waited
    assert abs(server.end / 1e9 - time.time()) < 60.0
    assert server.attributes["rpc.response.status_code"] == "OK"
    assert server.attributes["sharded_infer.model"] == MODEL
    assert server.attributes["sharded_infer.version"] == 1
    assert server.attributes["sharded_infer.samples"] == 5
    assert server.attributes["sharded_infer.executor"] == "inline"
    assert server.attributes["sharded_infer.request_id"] == "request-1"


def test_a_failed_request_is_traced_with_its_code_or_status(traced: Traced) -> None:
    assert traced.ask_over_http(7, model="nobody") == 404
    with pytest.raises(grpc.RpcError, match="nobody"):
        traced.ask(2, model="nobody")
    spans = traced.collector.trace(trace_of(2))
    assert list(spans) == [METHOD]
    assert spans[METHOD].attributes["rpc.response.status_code"] == "NOT_FOUND"
    assert spans[METHOD].attributes["sharded_infer.request_id"] == "request-2"
    assert spans[METHOD].status == 0 and "sharded_infer.model" not in spans[METHOD].attributes
    [over_http] = traced.collector.trace(trace_of(7)).values()
    assert over_http.name == "POST /v2/models/{model}/infer" and over_http.status == 0
    assert over_http.attributes["http.response.status_code"] == 404


def test_a_request_over_http_is_traced_below_its_clients_span(traced: Traced) -> None:
    for number, path in ((5, "infer"), (6, "versions/1/infer")):
        assert traced.ask_over_http(number, path=path) == 200
        spans = traced.collector.trace(trace_of(number))
        version = "/versions/{version}" if "versions" in path else ""
        route = f"/v2/models/{{model}}{version}/infer"
        server = spans[f"POST {route}"]
        assert server.kind == SERVER and server.trace_state == STATE
        assert (server.trace_id, server.parent_id) == (trace_of(number), f"{number:016x}")
        assert {spans[name].parent_id for name in PHASES} == {server.span_id}
        attributes = server.attributes
        assert attributes["sharded_infer.model"] == MODEL
        assert attributes["sharded_infer.version"] == 1
        assert attributes["sharded_infer.samples"] == 3
        assert attributes["sharded_infer.request_id"] == f"request-{number}"


def test_requests_of_a_stream_are_named_after_its_rpc(traced: Traced) -> None:
    metadata = [("traceparent", parent_of(8))]
    request = infer_request(good_inputs(2), request_id="streamed")
    with traced.server.stub() as stub:
        [answer] = stub.ModelStreamInfer(iter([request]), metadata=metadata, timeout=30)
    assert not answer.error_message
    spans = traced.collector.trace(trace_of(8))
    server = spans[STREAM_METHOD]
    assert METHOD not in spans and server.parent_id == f"{8:016x}"
    assert server.attributes["rpc.method"] == STREAM_METHOD
    assert server.attributes["sharded_infer.request_id"] == "streamed"
