"""A server's life: loading, ready, its end, refused starts, and its metrics page."""

import signal
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.support.server_pages import counted
from tests.support.server_processes import free_port, port_of
from tests.support.servers import (
    MODEL,
    Command,
    Ranker,
    RunningServer,
    good_inputs,
    infer_request,
    running_server,
    start_command,
)
from tests.support.waiting import until

NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVING = health_pb2.HealthCheckResponse.SERVING
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
OK = grpc.StatusCode.OK
WATCH = health_pb2.HealthCheckRequest(service="")
# The server's program: its model loads for as long as the file `hold` is there.
LOADS_WHEN_TOLD = """
import os
import time
import serving.cli
import serving.versions.version_loader

check = serving.versions.version_loader.check_golden

def held(model):
    while os.path.exists("{hold}"):
        time.sleep(0.005)
    return check(model)

serving.versions.version_loader.check_golden = held
serving.cli.main()
"""


def test_a_server_says_not_ready_while_it_loads_and_serving_after(
    ranker: Ranker, tmp_path: Path
) -> None:
    port = free_port()
    quick = [(f"grpc.{name}_reconnect_backoff_ms", 20) for name in ("initial", "min", "max")]
    words = ("serve", "-r", ranker.repository, "--port", port, "--http-port", 0, "--json")
    hold = tmp_path / "hold"
    hold.touch()
    seen = Counter[tuple[bool, int]]()
    refused = Counter[tuple[grpc.StatusCode, str]]()
    with (
        (tmp_path / "stderr").open("w") as errors,
        grpc.insecure_channel(f"127.0.0.1:{port}", options=quick) as channel,
    ):
        process = start_command(*words, stderr=errors, program=LOADS_WHEN_TOLD.format(hold=hold))
        try:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            health = health_pb2_grpc.HealthStub(channel)
            # The connection waits for the server; from then on it is asked as fast as it answers.
            stub.ServerLive(service_pb2.ServerLiveRequest(), wait_for_ready=True, timeout=60)
            state = (False, NOT_SERVING)
            while state != (True, SERVING):
                answer = stub.ModelInfer.future(infer_request(good_inputs(1)), timeout=30)
                if answer.code() is not OK:
                    refused[answer.code(), answer.details().split(":")[0]] += 1
                ready = stub.ServerReady(service_pb2.ServerReadyRequest(), timeout=30).ready
                state = (ready, health.Check(WATCH, timeout=30).status)
                seen[state] += 1
                hold.unlink(missing_ok=True)
            assert stub.ModelInfer(infer_request(good_inputs(1)), timeout=30).model_name == MODEL
        finally:
            hold.unlink(missing_ok=True)
            process.terminate()
        assert process.wait(60) == 0 and process.stdout is not None
        process.stdout.close()
    assert seen[False, NOT_SERVING] > 0, seen
    assert list(refused) == [(UNAVAILABLE, f"model {MODEL!r} is loading")]


def test_an_open_health_watch_is_told_of_the_end_and_does_not_delay_it(
    ranker: Ranker, tmp_path: Path
) -> None:
    options = ("--drain-seconds", 120)
    with (
        running_server(ranker.repository, tmp_path / "log", *options) as server,
        grpc.insecure_channel(server.grpc_url) as channel,
    ):
        watch = health_pb2_grpc.HealthStub(channel).Watch(WATCH, timeout=120)
        assert next(watch).status == SERVING
        server.process.send_signal(signal.SIGTERM)
        assert next(watch).status == NOT_SERVING
        # The drain would last two minutes.
        assert server.process.wait(60) == 0
    log = server.log.read_text()
    assert "draining" in log and "Traceback" not in log


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-r", "{empty}/none"], ("none", "no such repository")),
        (["-r", "{empty}"], ("holds no published model",)),
        (["-r", "{ranker}", "-m", "other"], ("no model 'other'", MODEL)),
        (["-r", "{ranker}", "-m", "../ranker"], ("no model '../ranker'",)),
        (["-r", "{ranker}", "--topology", "cpu:9"], ("no plan", "'cpu:9'", "cpu:2")),
        (
            ["-r", "{ranker}", "--http-port", "{taken}"],
            ("HTTP port 127.0.0.1:{taken} cannot be had",),
        ),
    ],
    ids=["no repository", "empty", "no model", "a path", "no plan", "a taken HTTP port"],
)
def test_a_server_that_cannot_start_exits_with_1_and_says_why(
    options: list[str],
    words: tuple[str, ...],
    ranker: Ranker,
    server: RunningServer,
    tmp_path: Path,
    sharded_infer: Command,
) -> None:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    places = {"empty": tmp_path, "ranker": ranker.repository, "taken": port_of(server.metrics_url)}
    named = [option.format(**places) for option in options]
    done = sharded_infer("serve", "--port", 0, "--http-port", 0, *named)
    for number, handler in handlers.items():
        signal.signal(number, handler)
    done.refused(*(word.format(**places) for word in words))


def test_what_is_ready_is_printed_as_one_line_of_json(server: RunningServer) -> None:
    (model,) = server.ready["models"]
    assert (model["name"], model["version"], model["topology"]) == (MODEL, 1, "cpu:2")
    assert model["table_bytes"] > 0 and set(model["kernels"]) == {"int8", "bf16"}
    assert server.ready["metrics_url"].endswith("/metrics")


def test_counts_equal_the_requests_sent_by_code_and_in_samples(
    server: RunningServer, stub: Any
) -> None:
    def counts() -> list[float]:
        names, codes = ("samples", "ids_out_of_range"), ("OK", "INVALID_ARGUMENT", "NOT_FOUND")
        totals = [counted(server, f"sharded_infer_{name}_total") for name in names]
        return totals + [counted(server, "sharded_infer_requests_total", code=c) for c in codes]

    before = counts()
    for size in (1, 5, 30):
        stub.ModelInfer(infer_request(good_inputs(size)), timeout=10)
    outside = {"dense": np.zeros((2, 4), np.float32), "item": np.array([[97, 3], [-1, 2**40]])}
    stub.ModelInfer(infer_request(outside), timeout=10)
    refused = infer_request({"dense": np.zeros((1, 4), np.float32), "user": np.array([50])})
    for request in (refused, refused, infer_request(outside, model="elsewhere")):
        with pytest.raises(grpc.RpcError):
            stub.ModelInfer(request, timeout=10)
    # A client has its answer before the server has counted it as over.
    in_flight = "sharded_infer_requests_in_flight"
    until(lambda: counted(server, in_flight) == 0, "all are counted as over")
    assert [now - then for now, then in zip(counts(), before, strict=True)] == [38, 3, 4, 2, 1]
