"""A server whose predict calls hold every thread: its probes, its full queue, and its end."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tritonclient.grpc import service_pb2

from serving.grpc_api.status_codes import PUSHBACK
from tests.support.server_pages import counted, readiness
from tests.support.servers import (
    MODEL,
    Ranker,
    RunningServer,
    good_inputs,
    infer_request,
    running_server,
    scores_of,
)
from tests.support.waiting import until

# Each batch says that it has begun, and lasts until the FIFO is closed for writing.
HELD = """
from pathlib import Path
from serving.inference.batch_execution import BatchExecution

begun, fifo = Path({begun!r}), Path({fifo!r})
run = BatchExecution.run

def wait(self, batch):
    if fifo.exists():
        with begun.open("a") as file:
            file.write("x")
        fifo.read_bytes()
    run(self, batch)

BatchExecution.run = wait
import serving.cli
serving.cli.main()
"""
QUEUED, LARGE, ROUNDS = 40, 4, 20
SECONDS = 30.0


@contextmanager
def held(ranker: Ranker, tmp_path: Path, slots: int) -> Iterator[RunningServer]:
    """A server that answers no predict call until the end, and then every one."""
    begun, fifo = tmp_path / "begun", tmp_path / "fifo"
    program = HELD.format(begun=str(begun), fifo=str(fifo))
    options = ("--slots", slots, "--heartbeat-seconds", 0, "--max-queue-requests", QUEUED + LARGE)
    log = tmp_path / "log"
    message, large = infer_request(good_inputs(3)), good_inputs(20_000)
    with (
        running_server(ranker.repository, log, *options, program=program) as server,
        server.stub() as stub,
    ):
        os.mkfifo(fifo)
        # It is open for writing, so that what reads it waits.
        writer = os.open(fifo, os.O_RDWR)
        calls = []
        # One by one, so that each has a batch and with it a slot; the others wait in the queue.
        for slot in range(slots):
            calls.append(stub.ModelInfer.future(message, timeout=2 * SECONDS))
            until(lambda: begun.exists() and begun.stat().st_size > slot, "it runs")  # noqa: B023
        queued = [message] * QUEUED + [infer_request(large)] * LARGE
        calls += [stub.ModelInfer.future(sent, timeout=2 * SECONDS) for sent in queued]
        try:
            yield server
        finally:
            fifo.unlink()
            os.close(writer)
        assert {call.result().model_name for call in calls} == {MODEL}
        # Answers of 320 kB each.
        expected = ranker.predict(large)["score"]
        for call in calls[-LARGE:]:
            np.testing.assert_allclose(scores_of(call.result())["score"], expected, atol=1e-5)
    assert "internal error" not in log.read_text()


@pytest.fixture
def full(ranker: Ranker, tmp_path: Path) -> Iterator[RunningServer]:
    """A server whose queue is full; the thread that runs no batch reads calls."""
    with held(ranker, tmp_path, 1) as server:
        waiting = "sharded_infer_queue_requests"
        until(lambda: counted(server, waiting) == QUEUED + LARGE, "the queue is full")
        yield server


def test_probes_are_answered_while_calls_hold_every_thread(ranker: Ranker, tmp_path: Path) -> None:
    with (
        held(ranker, tmp_path, 2) as server,
        server.stub() as stub,
        grpc.insecure_channel(server.grpc_url) as channel,
    ):
        health = health_pb2_grpc.HealthStub(channel)
        named = health_pb2.HealthCheckRequest(service=MODEL)
        for _ in range(ROUNDS):
            assert health.Check(health_pb2.HealthCheckRequest(), timeout=SECONDS).status == 1
            assert health.Check(named, timeout=SECONDS).status == 1
            assert stub.ServerLive(service_pb2.ServerLiveRequest(), timeout=SECONDS).live
            assert stub.ServerReady(service_pb2.ServerReadyRequest(), timeout=SECONDS).ready
            assert readiness(server, "/live")[0] == 200
            assert readiness(server, "/ready") == (200, "ready")
            assert readiness(server, "/v2/health/ready")[0] == 200


def test_a_full_queue_refuses_and_says_when_to_come_again(full: RunningServer) -> None:
    with full.stub() as stub:
        refused = stub.ModelInfer.future(infer_request(good_inputs(2)), timeout=SECONDS)
        assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert f"at most {QUEUED + LARGE} may; retry in " in refused.details()
        assert int(dict(refused.trailing_metadata())[PUSHBACK]) >= 1


def test_calls_in_flight_at_sigterm_are_answered(full: RunningServer) -> None:
    full.process.send_signal(signal.SIGTERM)
    until(lambda: "draining" in full.log.read_text(), "it drains")
