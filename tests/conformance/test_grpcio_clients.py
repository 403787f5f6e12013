"""gRPC's own clients, threads and asyncio, each with and without TLS, on every transport."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.support.servers import (
    Ranker,
    RunningServer,
    good_inputs,
    infer_request,
    running_server,
    scores_of,
)
from tests.support.tls import IssuedFiles, issue_files
from tests.support.waiting import until

SECONDS = 60.0
Code = grpc.StatusCode
Options = list[tuple[str, int]]
# Channels of one process share connections otherwise.
OWN: Options = [("grpc.use_local_subchannel_pool", 1)]


@dataclass(frozen=True, slots=True)
class GrpcServer:
    """A server's address, and channels to it."""

    address: str
    files: IssuedFiles | None
    ranker: Ranker = field(repr=False)

    def channel(self, options: Options = OWN) -> grpc.Channel:
        if self.files is None:
            return grpc.insecure_channel(self.address, options)
        return grpc.secure_channel(self.address, self._credentials(), options)

    @asynccontextmanager
    async def aio(self, options: Options = OWN) -> AsyncIterator[Any]:
        """The stub of a channel of asyncio's."""
        channel = (
            grpc.aio.insecure_channel(self.address, options)
            if self.files is None
            else grpc.aio.secure_channel(self.address, self._credentials(), options)
        )
        async with channel:
            yield service_pb2_grpc.GRPCInferenceServiceStub(channel)

    def _credentials(self) -> grpc.ChannelCredentials:
        assert self.files is not None
        return grpc.ssl_channel_credentials(self.files.ca.read_bytes())

    def check(self, response: Any, batch: int, seed: int = 0) -> None:
        """The response holds the scores of `good_inputs`."""
        for name, expected in self.ranker.predict(good_inputs(batch, seed)).items():
            assert np.abs(scores_of(response)[name] - expected).max() < 1e-5


def request_of(batch: int, seed: int = 0) -> Any:
    return infer_request(good_inputs(batch, seed), request_id=str(seed))


@pytest.fixture(scope="module")
def server(running: tuple[RunningServer, IssuedFiles | None], ranker: Ranker) -> GrpcServer:
    return GrpcServer(running[0].grpc_url, running[1], ranker)


@pytest.fixture
def stub(server: GrpcServer) -> Iterator[Any]:
    with server.channel() as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def code_of(call: Callable[[], object]) -> Code:
    try:
        call()
    except grpc.RpcError as error:
        code: Code = error.code()
        return code
    return Code.OK


@pytest.mark.parametrize("compression", list(grpc.Compression), ids=lambda c: c.name)
def test_a_request_may_be_compressed(
    server: GrpcServer, stub: Any, compression: grpc.Compression
) -> None:
    for batch in (2, 3000):
        response = stub.ModelInfer(request_of(batch), compression=compression, timeout=SECONDS)
        server.check(response, batch)
    answers = stub.ModelStreamInfer(
        iter([request_of(2), request_of(300, 1)]), compression=compression, timeout=SECONDS
    )
    batches = {"0": 2, "1": 300}
    for answer in answers:
        response = answer.infer_response
        server.check(response, batches.pop(response.id), int(response.id))
    assert not batches


def test_an_answer_has_gRPCs_metadata_and_no_other(stub: Any) -> None:  # noqa: N802
    _, call = stub.ModelInfer.with_call(request_of(2), timeout=SECONDS)
    assert call.code() is Code.OK
    assert {name for name, _ in call.initial_metadata()} <= {"grpc-accept-encoding"}
    assert list(call.trailing_metadata()) == []


def test_words_of_a_refusal_arrive_as_they_are(stub: Any) -> None:
    request = infer_request(good_inputs(2), model="näme % of\tno 模型 🙂")
    with pytest.raises(grpc.RpcError) as refused:
        stub.ModelInfer(request, timeout=SECONDS)
    assert refused.value.code() is Code.NOT_FOUND
    assert "näme % of" in refused.value.details() and "模型 🙂" in refused.value.details()


def test_a_cancelled_call_ends_alone(server: GrpcServer, stub: Any) -> None:
    for _ in range(50):
        call = stub.ModelInfer.future(request_of(2), timeout=SECONDS)
        call.cancel()
        assert call.cancelled() or call.code() is Code.OK
    stream = stub.ModelStreamInfer(iter([request_of(2)] * 3), timeout=SECONDS)
    next(stream)
    stream.cancel()
    with pytest.raises(grpc.RpcError) as ended:
        list(stream)
    assert ended.value.code() is Code.CANCELLED
    server.check(stub.ModelInfer(request_of(2), timeout=SECONDS), 2)


def test_a_deadline_that_has_passed_is_told(server: GrpcServer, stub: Any) -> None:
    told = 0
    for _ in range(2000):
        # The client rounds its deadline up to a millisecond: a quick answer comes before it.
        code = code_of(lambda: stub.ModelInfer(request_of(2), timeout=1e-6))
        assert code in {Code.DEADLINE_EXCEEDED, Code.OK}
        told += code is Code.DEADLINE_EXCEEDED
        if told == 20:
            break
    assert told == 20
    watch = service_pb2.ServerReadyRequest()
    assert stub.ServerReady(watch, timeout=SECONDS).ready


def test_a_stream_answers_while_its_client_still_sends(server: GrpcServer, stub: Any) -> None:
    answered = [threading.Event() for _ in range(10)]

    def requests() -> Iterator[Any]:
        for seed, event in enumerate(answered):
            yield request_of(2, seed)
            assert event.wait(SECONDS)

    for seed, answer in enumerate(stub.ModelStreamInfer(requests(), timeout=SECONDS)):
        server.check(answer.infer_response, 2, seed)
        answered[seed].set()
    assert all(event.is_set() for event in answered)


def test_no_message_is_lost_when_its_stream_is_half_closed_at_once(
    server: GrpcServer, stub: Any
) -> None:
    # The messages take longer to read than the end of the stream.
    requests = [request_of(300, seed) for seed in range(2)]
    for _ in range(100):
        answers = list(
            stub.ModelStreamInfer(
                iter(requests), compression=grpc.Compression.Gzip, timeout=SECONDS
            )
        )
        assert sorted(answer.infer_response.id for answer in answers) == ["0", "1"]


def test_asyncio_asks_for_everything_at_once(server: GrpcServer) -> None:
    async def ask() -> None:
        async with server.aio() as stub:
            responses = await asyncio.gather(
                *(stub.ModelInfer(request_of(2, seed), timeout=SECONDS) for seed in range(256))
            )
            for seed, response in enumerate(responses):
                server.check(response, 2, seed)

            async def sent() -> AsyncIterator[Any]:
                for seed in range(20):
                    yield request_of(2, seed)

            count = 0
            async for answer in stub.ModelStreamInfer(sent(), timeout=SECONDS):
                server.check(answer.infer_response, 2, int(answer.infer_response.id))
                count += 1
            assert count == 20
            call = stub.ModelInfer(request_of(2), timeout=SECONDS)
            call.cancel()
            with pytest.raises((asyncio.CancelledError, grpc.aio.AioRpcError)):
                await call
            compressed = await stub.ModelInfer(
                request_of(300),
                compression=grpc.Compression.Gzip,
                metadata=(("x-bytes-bin", b"\0\xff"),),
                timeout=SECONDS,
            )
            server.check(compressed, 300)

    asyncio.run(ask())


@pytest.mark.parametrize("running", ["plain"], indirect=True)
def test_one_channel_carries_many_calls_at_once(server: GrpcServer, stub: Any) -> None:
    """As perf_analyzer does, whose C++ client shares one channel."""
    calls = [stub.ModelInfer.future(request_of(1, seed)) for seed in range(2000)]
    for seed, call in enumerate(calls):
        server.check(call.result(timeout=SECONDS), 1, seed)


def test_calls_outlast_their_connections(ranker: Ranker, tmp_path: Path) -> None:
    files = issue_files(tmp_path)
    options = ("--max-connection-age", 1, *files.options())
    with running_server(ranker.repository, tmp_path / "log", *options) as running:
        server = GrpcServer(running.grpc_url, files, ranker)
        states: list[grpc.ChannelConnectivity] = []
        with server.channel() as channel:
            channel.subscribe(states.append)
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            # Each end of a connection makes the channel idle; meanwhile calls go on.
            seeds = iter(range(1_000_000))

            def ended() -> bool:
                window = [next(seeds) for _ in range(16)]
                calls = [stub.ModelInfer.future(request_of(1, s), timeout=SECONDS) for s in window]
                for call in calls:
                    call.result()
                return states.count(grpc.ChannelConnectivity.IDLE) >= 2

            until(ended, "connections have ended", SECONDS)
