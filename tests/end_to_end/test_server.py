"""A server's life: loading, ready, its end, refused starts, and its metrics page."""

import shutil
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

import serving.cli
from serving.metrics.families.request_families import PHASES
from tests.support.server_pages import samples
from tests.support.server_processes import free_port
from tests.support.servers import (
    MODEL,
    Ranker,
    RunningServer,
    good_inputs,
    infer_request,
    run,
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


def test_a_model_copied_to_another_name_is_refused(ranker: Ranker, tmp_path: Path) -> None:
    shutil.copytree(ranker.repository / MODEL, tmp_path / "copied")
    done = run("serve", "-r", tmp_path, "--port", 0, "--http-port", 0)
    assert done.returncode == 1
    assert f"is of model {MODEL!r}, its folder of 'copied'" in done.stderr


def test_a_damaged_version_is_not_served_and_the_file_is_named(
    ranker: Ranker, tmp_path: Path
) -> None:
    repository = tmp_path / "repository"
    shutil.copytree(ranker.repository, repository)
    damaged = sorted((repository / MODEL / "1" / "tables").iterdir())[0]
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    done = run("serve", "-r", repository, "--port", 0, "--http-port", 0, "--json")
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.count(str(damaged)) == done.stderr.count("altered") == 1, done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"error: {damaged}")
    assert "Traceback" not in done.stderr


@pytest.fixture
def own_process_settings() -> Iterator[None]:
    """Puts back what `serve` changes of the process it runs in."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    threads = torch.get_num_threads()
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("own_process_settings")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-r", "{empty}/none"], ("none", "no such repository")),
        (["-r", "{empty}"], ("holds no published model",)),
        (["-r", "{ranker}", "-m", "other"], ("no model 'other'", MODEL)),
        (["-r", "{ranker}", "-m", "../ranker"], ("no model '../ranker'",)),
        (["-r", "{ranker}", "--topology", "cpu:9"], ("no plan", "'cpu:9'", "cpu:2")),
        (["-r", "{ranker}", "--http-port", "{taken}"], ("HTTP port 127.0.0.1:{taken}",)),
    ],
    ids=["no repository", "empty", "no model", "a path", "no plan", "a taken HTTP port"],
)
def test_a_server_that_cannot_start_exits_with_1_and_says_why(
    options: list[str],
    words: tuple[str, ...],
    ranker: Ranker,
    server: RunningServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    taken = server.metrics_url.rpartition(":")[2].partition("/")[0]
    places = {"empty": tmp_path, "ranker": ranker.repository, "taken": taken}
    named = [option.format(**places) for option in options]
    ports = ["--port", "0", "--http-port", "0"]
    monkeypatch.setattr(sys, "argv", ["sharded-infer", "serve", *ports, *named])
    with pytest.raises(SystemExit) as exited:
        serving.cli.main()
    printed = capsys.readouterr()
    assert exited.value.code == 1 and printed.out == ""
    assert printed.err.startswith("error: ") and printed.err.count("\n") == 1
    assert [word for word in words if word.format(**places) not in printed.err] == []


def test_what_is_ready_is_printed_as_one_line_of_json(server: RunningServer) -> None:
    (model,) = server.ready["models"]
    assert (model["name"], model["version"], model["topology"]) == (MODEL, 1, "cpu:2")
    assert model["table_bytes"] > 0 and set(model["kernels"]) == {"int8", "bf16"}
    assert server.ready["metrics_url"].endswith("/metrics")


def test_counts_equal_the_requests_sent_by_code_and_in_samples(
    server: RunningServer, stub: Any
) -> None:
    before = samples(server.metrics_url)
    for size in (1, 5, 30):
        stub.ModelInfer(infer_request(good_inputs(size)), timeout=10)
    outside = {"dense": np.zeros((2, 4), np.float32), "item": np.array([[97, 3], [-1, 2**40]])}
    stub.ModelInfer(infer_request(outside), timeout=10)
    refused = infer_request({"dense": np.zeros((1, 4), np.float32), "user": np.array([50])})
    for request in (refused, refused, infer_request(outside, model="elsewhere")):
        with pytest.raises(grpc.RpcError):
            stub.ModelInfer(request, timeout=10)
    after = samples(server.metrics_url)
    grown = {key: value - before.get(key, 0.0) for key, value in after.items()}
    labels = (("model", MODEL), ("version", "1"))

    def count(name: str, **more: str) -> float:
        return grown[name, tuple(sorted((*labels, *more.items())))]

    assert count("sharded_infer_requests_total", code="OK") == 4
    assert count("sharded_infer_requests_total", code="INVALID_ARGUMENT") == 2
    unknown = (("code", "NOT_FOUND"), ("model", "unknown"), ("version", ""))
    assert grown["sharded_infer_requests_total", unknown] == 1
    assert count("sharded_infer_samples_total") == 38
    assert count("sharded_infer_ids_out_of_range_total") == 3
    assert count("sharded_infer_request_seconds_count") == 4
    assert count("sharded_infer_request_seconds_bucket", le="+Inf") == 4
    spent = [count("sharded_infer_phase_seconds_sum", phase=phase) for phase in PHASES]
    for phase in PHASES:
        assert count("sharded_infer_phase_seconds_count", phase=phase) == 4
    assert all(seconds > 0 for seconds in spent)
    assert sum(spent) <= count("sharded_infer_request_seconds_sum")
    # A client has its answer before the server has counted it as over.
    until(
        lambda: samples(server.metrics_url)["sharded_infer_requests_in_flight", ()] == 0,
        "all are counted as over",
    )
    assert not any("elsewhere" in label for key in after for pair in key[1] for label in pair)
