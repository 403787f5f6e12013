"""Probes are answered while predict calls hold every thread that runs batches."""

import os
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tritonclient.grpc import service_pb2

from tests.support.server_pages import readiness
from tests.support.servers import (
    MODEL,
    Ranker,
    RunningServer,
    good_inputs,
    infer_request,
    running_server,
)
from tests.support.waiting import until

# Each batch says that it has begun, and lasts until the FIFO is closed for writing.
HELD = """
from pathlib import Path
from serving.inference.batch_execution import BatchExecution

begun, fifo = Path({begun!r}), Path({fifo!r})
run = BatchExecution.__call__

def wait(self, calls):
    if fifo.exists():
        with begun.open("a") as file:
            file.write("x")
        fifo.read_bytes()
    return run(self, calls)

BatchExecution.__call__ = wait
import serving.cli
serving.cli.main()
"""
SLOTS, QUEUED, ROUNDS = 2, 40, 20
SECONDS = 30.0


@pytest.fixture
def held(ranker: Ranker, tmp_path: Path) -> Iterator[RunningServer]:
    """A server that answers no predict call until the fixture ends."""
    begun, fifo = tmp_path / "begun", tmp_path / "fifo"
    program = HELD.format(begun=str(begun), fifo=str(fifo))
    options = ("--slots", SLOTS, "--heartbeat-seconds", 0)
    log = tmp_path / "log"
    message = infer_request(good_inputs(3))
    with (
        running_server(ranker.repository, log, *options, program=program) as server,
        server.stub() as stub,
    ):
        os.mkfifo(fifo)
        # It is open for writing, so that what reads it waits.
        writer = os.open(fifo, os.O_RDWR)
        calls = []
        # One by one, so that each has a batch and with it a slot; the others wait in the queue.
        for slot in range(SLOTS):
            calls.append(stub.ModelInfer.future(message, timeout=2 * SECONDS))
            until(lambda: begun.exists() and begun.stat().st_size > slot, "it runs")  # noqa: B023
        calls += [stub.ModelInfer.future(message, timeout=2 * SECONDS) for _ in range(QUEUED)]
        try:
            yield server
        finally:
            fifo.unlink()
            os.close(writer)
        answers = [call.result().model_name for call in calls]
        assert answers == [MODEL] * (SLOTS + QUEUED)
    assert "internal error" not in log.read_text()


def test_probes_are_answered_while_calls_hold_every_thread(held: RunningServer) -> None:
    with held.stub() as stub, grpc.insecure_channel(held.grpc_url) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for _ in range(ROUNDS):
            assert health.Check(health_pb2.HealthCheckRequest(), timeout=SECONDS).status == 1
            named = health_pb2.HealthCheckRequest(service=MODEL)
            assert health.Check(named, timeout=SECONDS).status == 1
            assert stub.ServerLive(service_pb2.ServerLiveRequest(), timeout=SECONDS).live
            assert stub.ServerReady(service_pb2.ServerReadyRequest(), timeout=SECONDS).ready
            assert readiness(held, "/live")[0] == 200
            assert readiness(held, "/ready") == (200, "ready")
            assert readiness(held, "/v2/health/ready")[0] == 200
