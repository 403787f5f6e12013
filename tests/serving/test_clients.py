"""Clients that vanish, give up, read slowly, are in a hurry, or come when there is no room."""

import shutil
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from kernels.row_format import RowFormat
from serving.inference import PUSHBACK
from serving.native_transport import pygrpc_native
from serving.rpc_handlers import INFER_METHOD
from sharded_infer import (
    DenseSpec,
    ModelSpec,
    QuantizationSpec,
    TableSpec,
    TowerSpec,
    open_model,
    publish,
)
from tests.serving.conftest import (
    MODEL,
    Ranker,
    RunningServer,
    good_inputs,
    infer_request,
    running_server,
)
from tests.serving.test_server import samples

needs_native = pytest.mark.skipif(pygrpc_native is None, reason="needs the extra `native`")
TRANSPORTS = ("grpcio", pytest.param("native", marks=needs_native))
OK = grpc.StatusCode.OK
CANCELLED = grpc.StatusCode.CANCELLED
DEADLINE_EXCEEDED = grpc.StatusCode.DEADLINE_EXCEEDED
RESOURCE_EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
QUEUE_LIMIT = 8
# How long the slow request of these tests holds the only slot, at least.
_SLOW_SECONDS = 1.2


# ---------------------------------------------------------------- a server with one slot


class _WideTower(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.score = nn.Linear(1 + width, 1)

    def forward(self, dense: Tensor, embeddings: Tensor) -> dict[str, Tensor]:
        return {"score": self.score(torch.cat([dense, embeddings], dim=1)).squeeze(1)}


@dataclass(frozen=True, slots=True)
class Models:
    """What is served: the ranker, and models that one sample with many ids keeps busy.

    Attributes:
        repository: holds all.
        ids: of a sample that takes long enough.
    """

    repository: Path
    ids: int

    def slow_request(self, model: str = "slow", times: int = 1) -> Any:
        """One sample that holds a slot for a second or more, or so many times as long."""
        ids = np.arange(times * self.ids, dtype=np.int32)[None] % 64
        return infer_request({"dense": np.zeros((1, 1), np.float32), "ids": ids}, model=model)


@pytest.fixture(scope="module")
def models(ranker: Ranker, tmp_path_factory: pytest.TempPathFactory) -> Models:
    repository = tmp_path_factory.mktemp("models") / "repository"
    shutil.copytree(ranker.repository, repository)
    dim, few = 4096, 100_000
    # What the first batch of a model costs is not known to be much: one for each test of that.
    for name in ("slow", "surprising"):
        spec = ModelSpec(
            name=name,
            tables=(TableSpec("ids", 64, dim),),
            dense=DenseSpec({"dense": 1}),
            tower=TowerSpec(outputs=("score",)),
            quantization=QuantizationSpec(format=RowFormat.INT8),
        )
        table = nn.EmbeddingBag(64, dim, mode="sum")
        published = publish(spec, {"ids": table}, _WideTower(dim), repository)
    model = open_model(published.path)
    inputs = {
        "dense": np.zeros((1, 1), np.float32),
        "ids": np.arange(few, dtype=np.int32)[None] % 64,
    }
    model.predict(inputs)
    seconds = min(_timed(lambda: model.predict(inputs)) for _ in range(3))
    return Models(repository, int(few * 1.3 * _SLOW_SECONDS / seconds))


def _timed(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


@pytest.fixture(scope="module", params=TRANSPORTS)
def narrow(
    request: pytest.FixtureRequest, models: Models, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    """One slot, and room for a few requests that wait for it."""
    log = tmp_path_factory.mktemp("narrow") / "stderr"
    limits = (
        *("--slots", 1, "--max-queue-requests", QUEUE_LIMIT),
        *("--max-message-mib", 256, "--max-ids", 2**30),
    )
    options = ("--transport", request.param, *limits)
    with running_server(models.repository, log, *options) as server:
        yield server
    assert "internal error" not in log.read_text()


@dataclass(frozen=True, slots=True)
class Counts:
    """What a server has counted of one model, and what it is doing now."""

    ran: float
    refused: dict[str, float]
    in_flight: float


def counts(server: RunningServer, model: str = MODEL) -> Counts:
    values = {
        (name, *(value for label, value in pairs if label == "reason")): value
        for (name, pairs), value in samples(server.metrics_url).items()
        if ("model", model) in pairs or not pairs
    }
    reasons = ("queue_full", "deadline", "cancelled", "expired")
    return Counts(
        ran=values["sharded_infer_batch_requests_sum",],
        refused={r: values["sharded_infer_requests_refused_total", r] for r in reasons},
        in_flight=values["sharded_infer_requests_in_flight",],
    )


def grown(server: RunningServer, before: Counts) -> dict[str, float]:
    """What has come on top, without zeros: `ran` and the reasons of refusals."""
    now = counts(server)
    more = {reason: now.refused[reason] - before.refused[reason] for reason in now.refused}
    return {what: n for what, n in {"ran": now.ran - before.ran, **more}.items() if n}


def until(condition: Callable[[], Any], what: str, seconds: float = 20.0) -> None:
    assert happens(condition, seconds), f"not after {seconds} s: {what}"


def happens(condition: Callable[[], Any], seconds: float) -> bool:
    """Waits for something to become true; whether it did in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def quiet(server: RunningServer) -> None:
    """Waits until nothing is in flight."""
    until(lambda: counts(server).in_flight == 0, "nothing is in flight")


class SlowCall:
    """A call that holds the only slot; entered once it runs, and left when it is answered."""

    def __init__(self, server: RunningServer, models: Models, model: str = "slow") -> None:
        self._server, self._models, self._model = server, models, model
        self._stack = ExitStack()

    def __enter__(self) -> Any:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
        channel = self._stack.enter_context(grpc.insecure_channel(self._server.grpc_url, options))
        # A machine that others slow down may come to it when it is over already. A model can only
        # surprise once.
        for times in (2,) if self._model == "surprising" else (1, 2, 4):
            call = self._begin(channel.unary_unary(INFER_METHOD), times)
            if not call.done():
                return call
        raise AssertionError("the slow call is too quick")

    def _begin(self, infer: Any, times: int) -> Any:
        quiet(self._server)
        request = self._models.slow_request(self._model, times)
        call = infer.future(request.SerializeToString(), timeout=60)
        until(lambda: call.done() or counts(self._server).in_flight == 1, "the slow call has come")
        # It is read first: another one is answered until it has the slot.
        with self._server.stub() as stub:
            while not call.done():
                probe = stub.ModelInfer.future(infer_request(good_inputs(1)), timeout=60)
                if not happens(probe.done, 0.15):
                    probe.cancel()
                    break
        until(lambda: call.done() or counts(self._server).in_flight == 1, "the slow call is alone")
        return call

    def __exit__(self, *raised: object) -> None:
        self._stack.close()


def transport_of(server: RunningServer) -> str:
    transport: str = server.ready["transport"]
    return transport


def answers(server: RunningServer) -> bool:
    with server.stub() as stub:
        answer = stub.ModelInfer(infer_request(good_inputs(2)), timeout=30)
    return bool(answer.model_name == MODEL)


# ---------------------------------------------------------------- HTTP/2 by hand

_DATA, _HEADERS, _SETTINGS = 0, 1, 4
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_INITIAL_WINDOW = 4
_LARGEST_FRAME = 16384


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _field(name: str, value: str) -> bytes:
    # A literal without indexing, as short as its words: RFC 7541, section 6.2.2.
    return b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


_REQUEST_HEADERS = b"".join(
    _field(name, value)
    for name, value in {
        ":method": "POST",
        ":scheme": "http",
        ":path": INFER_METHOD,
        ":authority": "localhost",
        "content-type": "application/grpc",
        "te": "trailers",
    }.items()
)


class BareConnection:
    """A gRPC client that does as it likes: it can stop in the middle, and need not read."""

    def __init__(self, server: RunningServer, *, window: int = 65535) -> None:
        host, _, port = server.grpc_url.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), 10)
        settings = struct.pack(">HI", _INITIAL_WINDOW, window)
        self.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(_SETTINGS, 0, 0, settings))
        while self._next_frame() != (_SETTINGS, 0):
            pass
        self.send(_frame(_SETTINGS, _ACK, 0, b""))
        self._stream = -1

    def __enter__(self) -> "BareConnection":
        return self

    def __exit__(self, *raised: object) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def call(self, message: bytes, *, share: float = 1.0) -> None:
        """Sends a request, or the first part of one; nothing is read."""
        self._stream += 2
        self.send(_frame(_HEADERS, _END_HEADERS, self._stream, _REQUEST_HEADERS))
        framed = struct.pack(">BI", 0, len(message)) + message
        assert len(framed) < _LARGEST_FRAME
        part = framed[: int(len(framed) * share)]
        whole = len(part) == len(framed)
        self.send(_frame(_DATA, _END_STREAM if whole else 0, self._stream, part))

    def headers_of_next_answer(self) -> None:
        """Reads on until a response begins."""
        while self._next_frame()[0] != _HEADERS:
            pass

    def _next_frame(self) -> tuple[int, int]:
        head = self._read(9)
        length = int.from_bytes(head[:3], "big")
        self._read(length)
        return head[3], head[4]

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self._socket.recv(count - len(data))
            assert more, "the server closed the connection"
            data += more
        return data


def small_message() -> bytes:
    data: bytes = infer_request(good_inputs(2)).SerializeToString()
    return data


# ---------------------------------------------------------------- vanishing


def test_clients_that_vanish_in_the_middle_of_a_request_leave_nothing_behind(
    narrow: RunningServer,
) -> None:
    quiet(narrow)
    before = counts(narrow)
    with ExitStack() as stack:
        # More than there are threads: those that are silent must not be in the way once gone.
        for share in np.linspace(0.0, 0.99, 50):
            connection = stack.enter_context(BareConnection(narrow))
            connection.call(small_message(), share=float(share))
    assert answers(narrow)
    quiet(narrow)
    assert grown(narrow, before) == {"ran": 1}


def test_clients_that_vanish_before_their_answer_do_not_stop_the_server(
    narrow: RunningServer,
) -> None:
    quiet(narrow)
    for _ in range(30):
        with BareConnection(narrow) as connection:
            for _ in range(5):
                connection.call(small_message())
    assert answers(narrow)
    quiet(narrow)


def test_a_channel_closed_while_a_large_request_is_sent_leaves_nothing_behind(
    narrow: RunningServer, models: Models
) -> None:
    message = models.slow_request().SerializeToString()
    quiet(narrow)
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
    for delay in (0.0, 0.002, 0.01):
        with grpc.insecure_channel(narrow.grpc_url, options) as channel:
            grpc.channel_ready_future(channel).result(10)
            call = channel.unary_unary(INFER_METHOD).future(message)
            time.sleep(delay)
        assert call.code() is CANCELLED
    assert answers(narrow)
    quiet(narrow)


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: there\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 4096,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(_SETTINGS, 0, 0, b"") + b"\xff\xff\xff\0",
        _frame(_DATA, 0, 7, b"no preface"),
    ],
    ids=["HTTP/1", "TLS", "a preface and noise", "half a frame", "no preface"],
)
def test_garbage_on_a_connection_disturbs_nobody_else(
    garbage: bytes, narrow: RunningServer
) -> None:
    host, _, port = narrow.grpc_url.rpartition(":")
    with socket.create_connection((host, int(port)), 10) as noisy:
        noisy.sendall(garbage)
        assert answers(narrow)
    assert answers(narrow)
    quiet(narrow)


# ---------------------------------------------------------------- giving up


def test_cancelled_requests_leave_the_queue_without_being_run(
    narrow: RunningServer, models: Models
) -> None:
    count = 5
    with SlowCall(narrow, models) as slow, narrow.stub() as stub:
        before = counts(narrow)
        waiting = [stub.ModelInfer.future(infer_request(good_inputs(2))) for _ in range(count)]
        until(lambda: counts(narrow).in_flight == count + 1, "all have come")
        time.sleep(0.05)
        for call in waiting:
            call.cancel()
        until(lambda: counts(narrow).in_flight == 1, "all have gone")
        assert not slow.done()
        assert slow.code() is OK
        assert grown(narrow, before) == {"cancelled": count}
    assert answers(narrow)


def test_requests_of_a_client_that_vanishes_leave_the_queue(
    narrow: RunningServer, models: Models
) -> None:
    with SlowCall(narrow, models) as slow:
        before = counts(narrow)
        with BareConnection(narrow) as connection:
            for _ in range(3):
                connection.call(small_message())
            until(lambda: counts(narrow).in_flight == 4, "all have come")
            time.sleep(0.05)
        until(lambda: counts(narrow).in_flight == 1, "all have gone")
        assert not slow.done()
        assert slow.code() is OK
        assert grown(narrow, before) == {"cancelled": 3}


# ---------------------------------------------------------------- reading slowly


def test_clients_that_read_nothing_do_not_hold_up_others(narrow: RunningServer) -> None:
    quiet(narrow)
    before = counts(narrow)
    with ExitStack() as stack:
        # Together more than there are threads, and no answer of them can be sent.
        for _ in range(4):
            connection = stack.enter_context(BareConnection(narrow, window=0))
            for _ in range(15):
                connection.call(small_message())
                connection.headers_of_next_answer()
        assert grown(narrow, before) == {"ran": 60}
        began = time.monotonic()
        for _ in range(50):
            assert answers(narrow)
        assert time.monotonic() - began < 20
    quiet(narrow)


# ---------------------------------------------------------------- deadlines


@pytest.mark.parametrize("microseconds", [1, 20])
def test_a_timeout_that_has_passed_already_is_refused_and_not_run(
    microseconds: int, narrow: RunningServer
) -> None:
    quiet(narrow)
    before = counts(narrow)
    request = infer_request(good_inputs(2))
    request.parameters["timeout"].int64_param = microseconds
    with narrow.stub() as stub:
        calls = [stub.ModelInfer.future(request, timeout=30) for _ in range(4)]
        assert [call.code() for call in calls] == [DEADLINE_EXCEEDED] * 4
        request.parameters["timeout"].int64_param = 30_000_000
        assert stub.ModelInfer.future(request, timeout=30).code() is OK
    more = grown(narrow, before)
    assert more.pop("ran") == 1
    assert sum(more.values()) == 4 and set(more) <= {"expired", "deadline"}, more


def test_a_request_whose_deadline_passes_in_the_queue_is_told_while_the_long_batch_runs(
    narrow: RunningServer, models: Models
) -> None:
    request = infer_request(good_inputs(2))
    request.parameters["timeout"].int64_param = 300_000
    with SlowCall(narrow, models, "surprising") as slow, narrow.stub() as stub:
        before = counts(narrow)
        # The client's own clock is not what ends it.
        late = stub.ModelInfer.future(request, timeout=30)
        assert late.code() is DEADLINE_EXCEEDED
        assert not slow.done()
        assert "passed while it waited" in late.details()
        assert grown(narrow, before) == {"expired": 1}
        assert slow.code() is OK
        assert grown(narrow, before) == {"expired": 1}


def test_a_client_deadline_too_short_for_the_queue_is_not_run(
    narrow: RunningServer, models: Models
) -> None:
    with SlowCall(narrow, models) as slow, narrow.stub() as stub:
        before = counts(narrow)
        calls = [stub.ModelInfer.future(infer_request(good_inputs(2)), timeout=0.2)] * 3
        assert [call.code() for call in calls] == [DEADLINE_EXCEEDED] * 3
        assert not slow.done()
        assert slow.code() is OK
    more = grown(narrow, before)
    # At the door, while it waited, or given up by the client's own clock: not run in any case.
    assert "ran" not in more and sum(more.values()) == 1, more


# ---------------------------------------------------------------- no room


def test_a_full_queue_refuses_and_says_when_to_come_again(
    narrow: RunningServer, models: Models
) -> None:
    request = infer_request(good_inputs(2))
    with SlowCall(narrow, models) as slow, narrow.stub() as stub:
        before = counts(narrow)
        waiting = [stub.ModelInfer.future(request, timeout=60) for _ in range(QUEUE_LIMIT)]
        until(lambda: counts(narrow).in_flight == QUEUE_LIMIT + 1, "the queue is full")
        time.sleep(0.05)
        refused = [stub.ModelInfer.future(request, timeout=60) for _ in range(3)]
        for call in refused:
            assert call.code() is RESOURCE_EXHAUSTED
            assert f"at most {QUEUE_LIMIT} may; retry in " in call.details()
            metadata = dict(call.trailing_metadata())
            # pygrpc-native sends no metadata of names that begin with grpc-.
            assert PUSHBACK in metadata or transport_of(narrow) == "native"
            assert int(metadata.get(PUSHBACK, 1)) >= 1
        assert not slow.done()
        assert [call.code() for call in waiting] == [OK] * QUEUE_LIMIT
        assert slow.code() is OK
    assert grown(narrow, before) == {"ran": QUEUE_LIMIT, "queue_full": 3}


def test_waiting_requests_are_shown_as_queued(narrow: RunningServer, models: Models) -> None:
    def queued() -> tuple[float, float]:
        values = samples(narrow.metrics_url)
        labels = (("model", MODEL), ("version", "1"))
        names = ("sharded_infer_queue_requests", "sharded_infer_queue_samples")
        first, second = (values[name, labels] for name in names)
        return first, second

    with SlowCall(narrow, models) as slow, narrow.stub() as stub:
        calls = [stub.ModelInfer.future(infer_request(good_inputs(2))) for _ in range(3)]
        until(lambda: queued() == (3, 6) or slow.done(), "three wait")
        assert not slow.done(), "three requests waited, and were never shown"
        assert [call.code() for call in calls] == [OK] * 3
        until(lambda: queued() == (0, 0), "the queue is empty")


# ---------------------------------------------------------------- an idle server


def test_only_a_batched_model_delays_a_single_request(ranker: Ranker, tmp_path: Path) -> None:
    seconds = {}
    for executor in ("auto", "batched"):
        options = ("--executor", executor, "--max-delay-us", 200_000)
        log = tmp_path / executor
        with running_server(ranker.repository, log, *options) as server, server.stub() as stub:
            request = infer_request(good_inputs(1))
            stub.ModelInfer(request, timeout=30)
            seconds[executor] = min(
                _timed(partial(stub.ModelInfer, request, timeout=30)) for _ in range(5)
            )
    assert seconds["batched"] >= 0.2
    assert seconds["auto"] < 0.1


# ---------------------------------------------------------------- the end


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_answers_that_are_being_sent_at_sigterm_arrive(
    transport: str, models: Models, tmp_path: Path
) -> None:
    options = ("--transport", transport, "--slots", 1)
    options += ("--max-message-mib", 256, "--max-ids", 2**30)
    log = tmp_path / "stderr"
    large = infer_request(good_inputs(20_000))
    with (
        running_server(models.repository, log, *options) as server,
        server.stub() as stub,
        SlowCall(server, models) as slow,
    ):
        # Answers of 320 kB each, which are sent one on another once the slow one is done.
        calls = [stub.ModelInfer.future(large, timeout=60) for _ in range(4)]
        until(lambda: counts(server).in_flight == 5, "all have come")
        server.process.send_signal(signal.SIGTERM)
        assert [call.code() for call in (slow, *calls)] == [OK] * 5
        assert server.process.wait(30) == 0
