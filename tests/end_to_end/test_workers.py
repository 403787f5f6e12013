"""Several worker processes on one port: shared load, counts and memory; deaths, and the end."""

import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tritonclient.grpc import service_pb2

from serving.bench.load.generator import run_closed
from serving.bench.load.library import load_generator_refusal
from serving.bench.load.result import LoadResult
from serving.bench.load.target import Target
from serving.host.listeners import hold_port
from sharded_infer.errors import InputError
from tests.support.server_pages import by_worker, counted, readiness, samples
from tests.support.server_processes import (
    children_of,
    free_port,
    is_alive,
    port_of,
    standby_of,
    workers_of,
)
from tests.support.servers import (
    MODEL,
    Command,
    Ranker,
    RunningServer,
    good_inputs,
    infer_request,
    run,
    running_server,
    scores_of,
)
from tests.support.waiting import until

_REFUSAL = load_generator_refusal()
needs_load = pytest.mark.skipif(_REFUSAL is not None, reason=_REFUSAL or "")
OK, UNAVAILABLE = grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE
ONLY_GROW = ("_total", "_bucket", "_sum", "_count")
HEALTH = health_pb2.HealthCheckRequest(service="")


def load(server: RunningServer, messages: list[bytes], **more: Any) -> LoadResult:
    """Keeps calls open from the compiled client, which follows GOAWAY as gRPC does."""
    return run_closed(Target("127.0.0.1", port_of(server.grpc_url)), messages, **more)


def messages_of(count: int) -> list[bytes]:
    return [infer_request(good_inputs(3, seed)).SerializeToString() for seed in range(count)]


@contextmanager
def two_workers(ranker: Ranker, folder: Path, *options: object) -> Iterator[RunningServer]:
    with running_server(ranker.repository, folder / "log", "--workers", 2, *options) as server:
        yield server
    assert "internal error" not in server.log.read_text()


@pytest.fixture(scope="module")
def pair(ranker: Ranker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Two workers; a test that kills one waits for its successor."""
    with two_workers(ranker, tmp_path_factory.mktemp("pair")) as server:
        yield server


@pytest.fixture(scope="module")
def ageing(ranker: Ranker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Two workers that let no connection grow older than a second."""
    folder = tmp_path_factory.mktemp("ageing")
    with two_workers(ranker, folder, "--max-connection-age", 1) as server:
        yield server


@needs_load
def test_many_connections_spread_over_the_workers_and_get_the_opened_versions_scores(
    pair: RunningServer, ranker: Ranker
) -> None:
    before = by_worker(pair)
    result = load(pair, messages_of(20), connections=40, concurrency=40, seconds=1.5)
    grown = {worker: count - before[worker] for worker, count in by_worker(pair).items()}
    assert set(result.counts) == {"OK"}, (result.counts, result.errors)
    assert len(result.responses) == 20
    for seed, message in result.responses.items():
        expected = ranker.predict(good_inputs(3, seed))
        scores = scores_of(service_pb2.ModelInferResponse.FromString(message))
        assert scores.keys() == expected.keys()
        for name, values in expected.items():
            # Batches of other sizes round otherwise.
            np.testing.assert_allclose(scores[name], values, rtol=0, atol=1e-6)
    assert set(grown) == {"0", "1"} and sum(grown.values()) == result.counts["OK"]
    assert min(grown.values()) > 0.05 * sum(grown.values()), grown


def _ask_on_own_connection(server: RunningServer, request: Any) -> bool:
    with server.stub() as stub:
        return bool(stub.ModelInfer(request, timeout=10).model_name == MODEL)


def test_one_channel_under_load_comes_to_every_worker_and_no_request_fails(
    ageing: RunningServer,
) -> None:
    before, request, asked = by_worker(ageing), infer_request(good_inputs(2)), 0
    end = time.monotonic() + 3.0
    with ageing.stub() as stub:

        def reached_all() -> bool:
            nonlocal asked
            for _ in range(50):
                stub.ModelInfer(request, timeout=10)
                asked += 1
            now = by_worker(ageing)
            return time.monotonic() > end and all(now[worker] > before[worker] for worker in now)

        until(reached_all, "each worker has answered")
    assert sum(by_worker(ageing).values()) - sum(before.values()) == asked


class Watch:
    """What `/ready` says over and over, pages that broke off, and counters that fell.

    A killed worker takes those pages with it that it was writing.
    """

    def __init__(self, server: RunningServer) -> None:
        self._server = server
        self._stop = threading.Event()
        self.readiness: Counter[tuple[int, str]] = Counter()
        self.broken = 0
        self.fallen: list[str] = []
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        before: dict[Any, float] = {}
        while not self._stop.wait(0.02):
            code, text = readiness(self._server)
            try:
                page = samples(self._server.metrics_url)
            except OSError:
                code, page = 0, {}
            if code == 0:
                self.broken += 1
                continue
            self.readiness[code, text] += 1
            ours = {k: v for k, v in page.items() if k[0].startswith("sharded_infer")}
            now = {k: v for k, v in ours.items() if k[0].endswith(ONLY_GROW)}
            self.fallen += [str(key) for key in before if now.get(key, 0.0) < before[key]]
            before = now


@needs_load
def test_a_killed_worker_costs_its_own_requests_at_most_and_is_replaced(
    pair: RunningServer,
) -> None:
    until(lambda: len(workers_of(pair)) == 2, "two workers listen")
    victim = workers_of(pair)[0]
    connections = 12
    ok_before = counted(pair, "sharded_infer_requests_total", code="OK")
    by_worker_before = sum(by_worker(pair).values())
    restarts = counted(pair, "sharded_infer_worker_restarts_total")

    def replaced() -> bool:
        return len(workers_of(pair)) == 2 and counted(pair, "sharded_infer_workers") == 2

    with ThreadPoolExecutor(1) as pool, closing(Watch(pair)) as watch:
        flying = pool.submit(
            load, pair, messages_of(4), connections=connections, concurrency=12, seconds=3.0
        )
        until(
            lambda: counted(pair, "sharded_infer_requests_total", code="OK") > ok_before + 200,
            "requests are answered",
        )
        os.kill(victim, signal.SIGKILL)
        until(lambda: not is_alive(victim), "the worker is gone")
        until(replaced, "a successor serves")
        result = flying.result(60)
        until(lambda: watch.readiness[200, "ready"] > 5, "the page has been looked at")
    assert counted(pair, "sharded_infer_worker_restarts_total") == restarts + 1
    assert victim not in workers_of(pair)
    assert set(result.counts) <= {"OK", "UNAVAILABLE"}, (result.counts, result.errors)
    lost = result.counts.get("UNAVAILABLE", 0)
    # In flight when it was killed, and again on connections that its socket took while it went.
    assert lost <= 2 * connections
    # What the worker had counted but not sent is all that the two can differ by.
    ok = counted(pair, "sharded_infer_requests_total", code="OK") - ok_before
    assert result.counts["OK"] <= ok <= result.counts["OK"] + lost
    assert abs(sum(by_worker(pair).values()) - by_worker_before - ok) <= 1
    # A call ends after its response is on its way.
    until(lambda: not counted(pair, "sharded_infer_requests_in_flight"), "all calls have ended")
    assert counted(pair, "sharded_infer_queue_requests") == 0
    assert watch.fallen == [] and set(watch.readiness) == {(200, "ready")}, watch.readiness
    assert watch.broken <= 1


def test_a_killed_metrics_process_comes_back_with_all_counts(pair: RunningServer) -> None:
    with pair.stub() as stub:
        stub.ModelInfer(infer_request(good_inputs(5)), timeout=10)
    # A call ends after its response is on its way.
    until(lambda: not counted(pair, "sharded_infer_requests_in_flight"), "the call has ended")
    before = {k: v for k, v in samples(pair.metrics_url).items() if _is_count(k[0])}
    standby = standby_of(pair)
    os.kill(standby, signal.SIGKILL)
    until(lambda: not is_alive(standby), "the metrics process is gone")
    until(lambda: readiness(pair) == (200, "ready"), "it is back")
    now = {k: v for k, v in samples(pair.metrics_url).items() if _is_count(k[0])}
    assert now == before
    assert standby_of(pair) != standby
    with pair.stub() as stub:
        stub.ModelInfer(infer_request(good_inputs(5)), timeout=10)
    key = "sharded_infer_samples_total"
    until(lambda: counted(pair, key) == sum(v for k, v in before.items() if k[0] == key) + 5, key)


def _is_count(sample: str) -> bool:
    """Ours, and nothing that goes on by itself: times, and what processes take of the machine."""
    going_on = (
        "_age_seconds",
        "_read_timestamp_seconds",
        "_minor_page_faults_total",
        "_memory_available_bytes",
        "_worker_cpu_seconds_total",
        "_worker_resident_bytes",
        "_worker_huge_page_bytes",
        "_hot_row_share",
    )
    return sample.startswith("sharded_infer_") and not sample.endswith(going_on)


def test_no_process_outlives_a_killed_parent(ranker: Ranker, tmp_path: Path) -> None:
    log = tmp_path / "stderr"
    with running_server(ranker.repository, log, "--workers", 2, exit_code=None) as server:
        children = children_of(server.process.pid)
        assert len(children) == 4
        with grpc.insecure_channel(server.grpc_url) as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(HEALTH, timeout=60)
            assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
            server.process.kill()
            server.process.wait()
            until(lambda: not any(map(is_alive, children)), "all have ended")
            watch.cancel()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port_of(server.grpc_url)), 5)


def test_clients_that_honour_readiness_see_no_failure_at_sigterm(
    ranker: Ranker, tmp_path: Path
) -> None:
    request = infer_request(good_inputs(4))
    codes: Counter[grpc.StatusCode] = Counter()
    lock, asked_on = threading.Lock(), threading.Event()
    # Far longer than a busy machine takes to see that the server drains.
    grace = 10.0
    options = ("--workers", 2, "--grace-seconds", grace)
    with running_server(ranker.repository, tmp_path / "stderr", *options) as server:

        def ask_while_ready() -> None:
            with server.stub() as stub:
                while readiness(server) == (200, "ready"):
                    code = stub.ModelInfer.future(request, timeout=30).code()
                    with lock:
                        codes[code] += 1
                    if codes[OK] > 50:
                        asked_on.set()

        children = children_of(server.process.pid)
        with (
            ThreadPoolExecutor(4) as pool,
            server.stub() as stub,
            grpc.insecure_channel(server.grpc_url) as channel,
        ):
            clients = [pool.submit(ask_while_ready) for _ in range(4)]
            health = health_pb2_grpc.HealthStub(channel)
            is_ready = service_pb2.ServerReadyRequest()
            assert stub.ServerReady(is_ready, timeout=10).ready is True
            assert asked_on.wait(60)
            began = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            until(lambda: readiness(server) == (503, "draining"), "it drains")
            until(lambda: not stub.ServerReady(is_ready, timeout=10).ready, "not ready")
            not_serving = health_pb2.HealthCheckResponse.NOT_SERVING
            until(lambda: health.Check(HEALTH, timeout=10).status == not_serving, "not healthy")
            for _ in range(5):
                assert _ask_on_own_connection(server, request)
                assert stub.ModelInfer(request, timeout=10).model_name == MODEL
                assert readiness(server) == (503, "draining")
            for client in clients:
                client.result(30)
        assert server.process.wait(30) == 0
        assert time.monotonic() - began >= grace
        assert [pid for pid in children if is_alive(pid)] == []
    assert set(codes) == {OK} and codes[OK] > 50, codes
    assert "Traceback" not in server.log.read_text()


def test_a_server_that_still_loads_holds_its_port() -> None:
    # With connections of a server before it, which the port remembers, and without.
    for remembered in (False, True):
        port = free_port()
        if remembered:
            with (
                socket.create_server(("127.0.0.1", port)) as before,
                socket.create_connection(("127.0.0.1", port), 10) as client,
            ):
                before.accept()[0].close()
                assert client.recv(1) == b""
        with (
            closing(hold_port("127.0.0.1", port)),
            pytest.raises(InputError, match=f"port 127.0.0.1:{port} cannot be had"),
        ):
            hold_port("127.0.0.1", port)


def test_another_servers_workers_do_not_share_their_port(
    pair: RunningServer, ranker: Ranker, sharded_infer: Command
) -> None:
    port = port_of(pair.grpc_url)
    words = ("serve", "-r", ranker.repository, "--port", port, "--http-port", 0)
    for workers in (1, 2):
        done = sharded_infer(*words, "--workers", workers)
        done.refused(f"port 127.0.0.1:{port} cannot be had")
    assert _ask_on_own_connection(pair, infer_request(good_inputs(2)))


_BROKEN = """
import sys
import serving.cli
import serving.process.server
from sharded_infer.errors import InputError

class Broken:
    def __init__(self, *parts, **more):
        {what}

serving.process.server.Worker = Broken
serving.cli.main()
"""


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("raise InputError('no luck today')", "error: no luck today"),
        ("import os; os.abort()", "killed by SIGABRT"),
    ],
    ids=["an error", "a crash"],
)
def test_a_worker_that_cannot_start_ends_the_server_with_its_reason(
    what: str, said: str, ranker: Ranker
) -> None:
    words = ("serve", "-r", ranker.repository, "--port", 0, "--http-port", 0, "--workers", 2)
    done = run(*words, seconds=240, program=_BROKEN.format(what=what))
    assert done.returncode == 1 and done.stdout == "", done.stderr
    assert said in done.stderr
    assert "could not start; its error is above" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_a_server_can_be_followed_by_another_on_its_port_at_once(
    ranker: Ranker, tmp_path: Path
) -> None:
    # The first one closes its clients' connections: the port remembers them for a minute.
    port = free_port()
    for workers in (1, 2):
        options = ("--port", port, "--workers", workers)
        with running_server(ranker.repository, tmp_path / "stderr", *options) as server:
            address = ("127.0.0.1", port)
            with server.stub() as stub, socket.create_connection(address, 10) as silent:
                assert stub.ModelInfer(infer_request(good_inputs(1)), timeout=10)
                silent.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
                server.process.send_signal(signal.SIGTERM)
                assert server.process.wait(30) == 0
                while silent.recv(4096):
                    pass
