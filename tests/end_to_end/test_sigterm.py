"""SIGTERM under load: every call is answered or UNAVAILABLE, however many workers there are."""

import http.client
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import grpc
import numpy as np
import pytest

from serving.bench.load.generator import run_closed
from serving.bench.load.http_generator import http_message
from serving.bench.load.library import load_generator_refusal
from serving.bench.load.target import Target
from serving.transport.library import transport_refusal
from tests.support.server_processes import port_of
from tests.support.servers import (
    Ranker,
    RunningServer,
    good_inputs,
    infer_request,
    running_server,
    scores_of,
)
from tests.support.waiting import until

_REFUSAL = load_generator_refusal() or transport_refusal()
SERVERS = 100 if os.environ.get("SHARDED_INFER_SOAK") == "1" else 6
WORKERS = (1, 2, 4)
pytestmark = [
    pytest.mark.skipif(_REFUSAL is not None, reason=_REFUSAL or ""),
    pytest.mark.timeout(3600 if SERVERS > 10 else 300),
]
# Nothing waits for so long, unless it is lost.
SECONDS = 60.0
# Scores differ by rounding with their batch mates.
TOLERANCE = 1e-4
OK, UNAVAILABLE = "OK", "UNAVAILABLE"


class Clients:
    """Clients of several kinds, which ask until the server is gone, and outcomes by kind."""

    def __init__(self, server: RunningServer, ranker: Ranker) -> None:
        self._server = server
        inputs = good_inputs(3)
        self._request = infer_request(inputs)
        self._message = self._request.SerializeToString()
        self._expected = ranker.predict(inputs)
        self._gone = threading.Event()
        self.counts: dict[str, Counter[str]] = {}
        kinds: dict[str, Callable[[], Iterator[str]]] = {
            "one connection": self._on_one_connection,
            "a connection a call": self._on_many_connections,
            "a stream": self._on_streams,
            "HTTP": self._on_http,
        }
        self._pool = ThreadPoolExecutor(len(kinds) + 1)
        self._running = [self._pool.submit(self._run, kind, ask) for kind, ask in kinds.items()]
        self._load = self._pool.submit(
            run_closed,
            Target("127.0.0.1", port_of(server.grpc_url)),
            [self._message],
            connections=4,
            concurrency=32,
            seconds=3.0,
            drain_seconds=SECONDS,
        )

    def answered(self, calls: int) -> None:
        """Waits until each kind of client has been answered so often."""
        until(
            lambda: (
                any(one.done() for one in self._running)
                or (
                    len(self.counts) == len(self._running)
                    and all(count[OK] >= calls for count in self.counts.values())
                )
            ),
            "all clients are answered",
        )

    def end(self) -> None:
        """The server is gone: waits for the clients' ends; raises what no client may meet."""
        self._gone.set()
        for one in self._running:
            one.result(2 * SECONDS)
        self.counts["many at once"] = Counter(self._load.result(2 * SECONDS).counts)
        self._pool.shutdown()

    def _run(self, kind: str, ask: Callable[[], Iterator[str]]) -> None:
        count = self.counts[kind] = Counter()
        while not self._gone.is_set():
            for outcome in ask():
                count[outcome] += 1
                # A client that is refused tries again, after a while.
                if self._gone.wait(0.02 if outcome == UNAVAILABLE else 0.0):
                    break

    def _is_right(self, response: Any) -> bool:
        scores = scores_of(response)
        return all(
            np.allclose(scores[name], self._expected[name], rtol=0.0, atol=TOLERANCE)
            for name in self._expected
        )

    def _ask(self, stub: Any) -> str:
        try:
            response = stub.ModelInfer(self._request, timeout=SECONDS)
        except grpc.RpcError as error:
            code: str = error.code().name
            return code if code == UNAVAILABLE else f"{code}: {error.details()}"
        return OK if self._is_right(response) else "wrong"

    def _on_one_connection(self) -> Iterator[str]:
        with self._server.stub() as stub:
            while True:
                yield self._ask(stub)

    def _on_many_connections(self) -> Iterator[str]:
        with self._server.stub() as stub:
            yield self._ask(stub)

    def _on_streams(self) -> Iterator[str]:
        """Some requests at once; each has an answer, or the stream ends UNAVAILABLE."""
        asked = 5
        with self._server.stub() as stub:
            try:
                answers = stub.ModelStreamInfer(iter([self._request] * asked), timeout=SECONDS)
                for answer in answers:
                    asked -= 1
                    if answer.error_message:
                        # What was read when the server began to drain is refused by itself.
                        yield UNAVAILABLE if "draining" in answer.error_message else "wrong"
                    else:
                        yield OK if self._is_right(answer.infer_response) else "wrong"
            except grpc.RpcError as error:
                code: str = error.code().name
                yield code if code == UNAVAILABLE else f"{code}: {error.details()}"
            else:
                if asked:
                    yield f"a stream ended well without {asked} answers"

    def _on_http(self) -> Iterator[str]:
        address = self._server.metrics_url.removesuffix("/metrics").removeprefix("http://")
        head, _, body = http_message(
            self._message, Target("127.0.0.1", port_of(self._server.metrics_url))
        ).partition(b"\r\n\r\n")
        request, *lines = head.decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        with closing(http.client.HTTPConnection(address, timeout=SECONDS)) as client:
            while True:
                try:
                    client.request("POST", request.split()[1], body, headers)
                    answer = client.getresponse()
                except (ConnectionError, http.client.RemoteDisconnected):
                    # It was not begun to be answered.
                    yield UNAVAILABLE
                    return
                # Half an answer raises.
                answer.read()
                if answer.status not in (200, 503):
                    yield str(answer.status)
                yield OK if answer.status == 200 else UNAVAILABLE


def test_every_call_is_answered_or_unavailable_when_a_server_ends(
    ranker: Ranker, tmp_path: Path
) -> None:
    random = Random(24)
    total: dict[str, Counter[str]] = {}
    for number in range(SERVERS):
        workers = WORKERS[number % len(WORKERS)]
        log = tmp_path / f"log-{number}"
        options = ("--workers", workers, "--slots", random.choice((1, 2)))
        # It must end with 0.
        with running_server(ranker.repository, log, *options) as server:
            clients = Clients(server, ranker)
            try:
                clients.answered(random.randrange(1, 30))
                server.process.send_signal(signal.SIGTERM)
                server.process.wait(SECONDS)
            finally:
                clients.end()
        for kind, count in clients.counts.items():
            assert set(count) <= {OK, UNAVAILABLE}, (number, workers, kind, count)
            total.setdefault(kind, Counter()).update(count)
        text = log.read_text()
        assert "Traceback" not in text and "internal error" not in text, text
    print({kind: dict(count) for kind, count in total.items()})  # noqa: T201 - for the long form
    assert all(count[OK] > SERVERS for count in total.values()), total
