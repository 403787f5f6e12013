"""Traces, JSON lines and slow requests of real server processes, from the outside."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import grpc
import numpy as np
import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("opentelemetry.sdk", reason="the extra `tracing` is not installed")

from kernels.wording import counted
from serving.bench.load.library import load_generator_refusal
from sharded_infer import DenseSpec, ModelSpec, TowerSpec, publish
from sharded_infer.specs.model_spec import ServingSpec
from tests.end_to_end.test_workers import load, messages_of
from tests.support.collector import SERVER, Collector, running_collector
from tests.support.server_processes import free_port
from tests.support.servers import (
    DENSE_WIDTH,
    MODEL,
    Ranker,
    RunningServer,
    good_inputs,
    infer_request,
    json_inputs,
    ranker_spec,
    running_server,
)

METHOD = "inference.GRPCInferenceService/ModelInfer"
STREAM_METHOD = "inference.GRPCInferenceService/ModelStreamInfer"
PHASES = ("decode", "queue", "lookup", "tower", "encode")
STATE = "vendor=1"
_REFUSAL = load_generator_refusal()
needs_load = pytest.mark.skipif(_REFUSAL is not None, reason=_REFUSAL or "")


@dataclass(frozen=True, slots=True)
class Traced:
    """A server that traces what its clients trace, and logs JSON; and its collector."""

    server: RunningServer
    collector: Collector

    def lines(self) -> list[dict[str, Any]]:
        return json_lines(self.server)

    def ask(self, number: int, *, sampled: bool = True, **changes: Any) -> float:
        """One request with a trace of its own; the seconds that its client waited."""
        metadata = [("traceparent", parent_of(number, sampled)), ("tracestate", STATE)]
        words = {"request_id": f"request-{number}", **changes}
        with self.server.stub() as stub:
            began = time.monotonic()
            stub.ModelInfer(infer_request(good_inputs(5), **words), metadata=metadata)
            return time.monotonic() - began

    def ask_over_http(
        self, number: int, *, sampled: bool = True, model: str = MODEL, path: str = "infer"
    ) -> int:
        """One request to the REST port with a trace of its own; the status of its answer."""
        dense = {"dense": np.zeros((3, DENSE_WIDTH), np.float32)}
        body = json.dumps({"id": f"request-{number}", "inputs": json_inputs(dense)}).encode()
        asked = Request(  # noqa: S310 - our own server
            f"{self.server.http_url}/v2/models/{model}/{path}",
            data=body,
            headers={"traceparent": parent_of(number, sampled), "tracestate": STATE},
        )
        try:
            with urlopen(asked, timeout=30) as answer:  # noqa: S310
                assert json.loads(answer.read())["outputs"]
                status: int = answer.status
                return status
        except HTTPError as error:
            with error:
                return error.code


def json_lines(server: RunningServer) -> list[dict[str, Any]]:
    """The log, every line of which must be JSON."""
    return [json.loads(line) for line in server.log.read_text().splitlines()]


def trace_of(number: int) -> str:
    return f"{(0x4BF92F3577B34DA6 << 64) + number:032x}"


def parent_of(number: int, sampled: bool = True) -> str:
    return f"00-{trace_of(number)}-{number:016x}-0{int(sampled)}"


@pytest.fixture(scope="module")
def traced(ranker: Ranker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    options: tuple[object, ...] = (
        "--workers", 2, "--executor", "inline", "--slots", 1,
        "--log-format", "json", "--trace-ratio", 0, "--slow-request-ms", 3,
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


def test_there_is_hardly_any_time_between_the_phases(traced: Traced) -> None:
    # Of ten, one at least whose thread was not put aside there.
    shares = []
    for number in range(10, 20):
        traced.ask(number)
    for number in range(10, 20):
        spans = traced.collector.trace(trace_of(number))
        phases = sum(spans[name].seconds for name in PHASES)
        shares.append(phases / spans[METHOD].seconds)
    assert 0.8 < max(shares) <= 1.001, shares


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


def test_what_a_client_does_not_keep_is_not_traced(traced: Traced) -> None:
    for _ in range(20):
        traced.ask(3, sampled=False)
        assert traced.ask_over_http(3, sampled=False) == 200
    with traced.server.stub() as stub:
        for parent in ("", "garbage", f"ff-{trace_of(3)}-{3:016x}-01"):
            stub.ModelInfer(infer_request(good_inputs(1)), metadata=[("traceparent", parent)])
    # What comes later has come: nothing is under way any more.
    traced.ask(4)
    assert traced.ask_over_http(9) == 200
    for number in (4, 9):
        traced.collector.trace(trace_of(number))
    assert trace_of(3) not in {span.trace_id for span in traced.collector.spans}
    # Those of other tests, and none that began here.
    known = {trace_of(number) for number in range(100)}
    assert {span.trace_id for span in traced.collector.spans} <= known


def test_a_request_over_http_is_traced_below_its_clients_span(traced: Traced) -> None:
    for number, path in ((5, "infer"), (6, "versions/1/infer")):
        assert traced.ask_over_http(number, path=path) == 200
        spans = traced.collector.trace(trace_of(number))
        version = "/versions/{version}" if "versions" in path else ""
        route = f"/v2/models/{{model}}{version}/infer"
        server = spans[f"POST {route}"]
        assert server.kind == SERVER and server.trace_state == STATE
        assert (server.trace_id, server.parent_id) == (trace_of(number), f"{number:016x}")
        phases = [spans[name] for name in PHASES]
        assert {span.parent_id for span in phases} == {server.span_id}
        assert server.start == phases[0].start and server.end == phases[-1].end
        attributes = server.attributes
        assert attributes["http.request.method"] == "POST" and attributes["http.route"] == route
        assert attributes["http.response.status_code"] == 200
        assert attributes["sharded_infer.model"] == MODEL
        assert attributes["sharded_infer.version"] == 1
        assert attributes["sharded_infer.samples"] == 3
        assert attributes["sharded_infer.request_id"] == f"request-{number}"
        assert not any(name.startswith("rpc.") for name in attributes)


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


def test_every_line_of_the_log_is_json_and_names_its_process(traced: Traced) -> None:
    lines = traced.lines()
    assert lines and all(
        line.keys() >= {"time", "level", "logger", "message", "process", "pid"} for line in lines
    )
    assert {line["level"] for line in lines} <= {"info", "warning"}
    names = {line["process"] for line in lines}
    assert names <= {"server", "worker 0", "worker 1", "the follower", "the metrics process"}


# ---------------------------------------------------------------- batch mates

BIG = 40_000


class HeavyTower(nn.Module):
    """Enough to do that a batch of `BIG` samples takes tens of milliseconds."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(DENSE_WIDTH + width, 512)
        self.score = nn.Linear(512, 1)

    def forward(self, dense: Tensor, embeddings: Tensor) -> dict[str, Tensor]:
        hidden = torch.relu(self.hidden(torch.cat([dense, embeddings], dim=1)))
        return {"score": self.score(hidden).squeeze(1)}


def publish_heavy(repository: Path) -> None:
    spec = ModelSpec(
        name=MODEL,
        tables=ranker_spec().tables,
        dense=DenseSpec({"dense": DENSE_WIDTH}),
        tower=TowerSpec(outputs=("score",)),
        # A batch begins when both requests are there.
        serving=ServingSpec("batched", max_batch=BIG + 1, max_delay_us=10_000_000),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        tables = {
            t.name: nn.EmbeddingBag(t.rows, t.dim, mode=t.pooling or "sum") for t in spec.tables
        }
        publish(spec, tables, HeavyTower(spec.embedding_width), repository)


def test_a_large_batch_mate_is_said_to_be_what_made_a_request_slow(tmp_path: Path) -> None:
    publish_heavy(tmp_path / "models")
    small = infer_request(good_inputs(1), request_id="small\x1b")
    big = infer_request(good_inputs(BIG), request_id="big")
    with running_collector() as collector, running_server(
        tmp_path / "models", tmp_path / "log", "--log-format", "json", "--slow-request-ms", 10,
        "--trace-endpoint", collector.url,
    ) as server, server.stub() as stub:  # fmt: skip
        lines: list[dict[str, Any]] = []
        # On a machine that others use too its core is taken away now and then: that is said then.
        for number in range(1, 61, 2):
            # At once: what it waits for the other to be read is not what makes it slow.
            calls = [
                stub.ModelInfer.future(asked, metadata=[("traceparent", parent_of(number + at))])
                for at, asked in enumerate((small, big))
            ]
            for call in calls:
                call.result()
            lines = [line for line in json_lines(server) if line.get("request_id") == "small\x1b"]
            phase = lines[-1]["phase"]
            if phase == "batch_mates" or (phase == "preempted" and number > 18):
                break
        servers = [collector.trace(trace_of(at))[METHOD] for at in (number, number + 1)]
    line = lines[-1]
    if line["phase"] == "batch_mates":
        assert f"for {BIG} samples of 1 other in its batch" in line["message"]
    else:
        # Others had the core for longer than the batch itself, each time: nothing else excuses it.
        assert {line["phase"] for line in lines} <= {"preempted", "queue"}
        preempted = [line for line in lines if line["phase"] == "preempted"]
        assert all(line["batch_cpu_ms"] < 0.6 * line["batch_wall_ms"] for line in preempted)
    assert (line["batch_requests"], line["batch_samples"], line["samples"]) == (2, BIG + 1, 1)
    assert line["alone_ms"] < 0.1 * line["together_ms"]
    assert line["trace_id"] == trace_of(number)
    assert [span.links for span in servers] == [
        ((other.trace_id, other.span_id),) for other in reversed(servers)
    ]
    assert {span.attributes["sharded_infer.batch.requests"] for span in servers} == {2}


def test_a_queue_is_said_to_be_what_makes_requests_slow(tmp_path: Path) -> None:
    # One slot, and batches that hold it far longer than a small request takes, on any machine.
    publish_heavy(tmp_path / "models")
    with running_server(
        tmp_path / "models", tmp_path / "log", "--log-format", "json", "--slow-request-ms", 3,
        "--executor", "inline", "--slots", 1,
    ) as server, server.stub() as stub:  # fmt: skip
        queued: list[dict[str, Any]] = []
        # The small ones may be read before the large ones hold the slot: then once more.
        for _ in range(20):
            calls = [stub.ModelInfer.future(infer_request(good_inputs(BIG))) for _ in range(3)]
            calls += [
                stub.ModelInfer.future(infer_request(good_inputs(1), request_id="small"))
                for _ in range(20)
            ]
            for call in calls:
                call.result()
            lines = [line for line in json_lines(server) if line.get("event") == "slow_request"]
            queued = [
                line for line in lines if line["phase"] == "queue" and line["request_id"] == "small"
            ]
            if queued and max(line["requests_ahead"] for line in queued) > 3:
                break
    assert max(line["requests_ahead"] for line in queued) > 3
    assert all(line["total_ms"] >= 3.0 and line["batch_requests"] == 1 for line in queued)
    assert all(line["queue_ms"] > 0.5 * line["total_ms"] for line in queued)
    first = queued[0]
    assert f"{counted(first['requests_ahead'], 'request')} waited before it" in first["message"]
    assert first["model"] == MODEL and first["version"] == 1


@needs_load
def test_slow_requests_have_no_more_lines_than_people_read(ranker: Ranker, tmp_path: Path) -> None:
    # Every request is slower than that: how fast the machine is does not matter.
    with running_server(
        ranker.repository, tmp_path / "log", "--log-format", "json", "--slow-request-ms", 0.001,
    ) as server:  # fmt: skip
        began = time.monotonic()
        answered = load(server, messages_of(4), connections=2, concurrency=8, seconds=1.5)
        with server.stub() as stub:
            # The next line says how many before it were left out.
            while not sum(line.get("left_out", 0) for line in json_lines(server)):
                stub.ModelInfer(infer_request(good_inputs(1)))
                assert time.monotonic() - began < 60.0
    took = time.monotonic() - began
    slow = [line for line in json_lines(server) if line.get("event") == "slow_request"]
    # 10 at once, and 10 a second.
    assert 10 <= len(slow) <= 10 + 10 * took
    assert int((answered.codes == 0).sum()) > len(slow)


# ---------------------------------------------------------------- on and off


def test_a_dead_collector_neither_slows_nor_fails_requests_nor_the_end(
    ranker: Ranker, tmp_path: Path
) -> None:
    dead = f"http://127.0.0.1:{free_port()}"
    options = ("--trace-endpoint", dead, "--trace-ratio", 1, "--log-format", "json")
    with running_server(ranker.repository, tmp_path / "log", *options) as server:
        with server.stub() as stub:
            began = time.monotonic()
            for _ in range(300):
                stub.ModelInfer(infer_request(good_inputs(2)))
            assert time.monotonic() - began < 60.0
        before_end = time.monotonic()
    assert time.monotonic() - before_end < 25.0
    assert all(json.loads(line) for line in (tmp_path / "log").read_text().splitlines())


@pytest.mark.parametrize("options", [(), ("--trace-ratio", 0.5)], ids=["off", "on"])
def test_opentelemetry_is_imported_only_where_it_is_switched_on(
    ranker: Ranker,
    tmp_path: Path,
    options: tuple[object, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Each import is a line on the error stream.
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    served = running_server(ranker.repository, tmp_path / "log", *options)
    with served as server, server.stub() as stub:
        stub.ModelInfer(infer_request(good_inputs(2)))
    imported = (tmp_path / "log").read_text()
    assert "serving.process.worker" in imported
    assert ("opentelemetry" in imported) is bool(options)
