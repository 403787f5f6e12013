"""gRPC's own clients, threads and asyncio, each with and without TLS, on every transport."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.support.servers import Ranker, RunningServer, good_inputs, infer_request, scores_of
from tests.support.tls import IssuedFiles

SECONDS = 60.0
Code = grpc.StatusCode
# Channels of one process share connections otherwise.
OWN = [("grpc.use_local_subchannel_pool", 1)]


@dataclass(frozen=True, slots=True)
class GrpcServer:
    address: str
    files: IssuedFiles | None
    ranker: Ranker = field(repr=False)

    def channel(self, library: Any = grpc) -> Any:
        if self.files is None:
            return library.insecure_channel(self.address, OWN)
        credentials = grpc.ssl_channel_credentials(self.files.ca.read_bytes())
        return library.secure_channel(self.address, credentials, OWN)

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


@pytest.mark.parametrize("compression", list(grpc.Compression), ids=lambda c: c.name)
def test_calls_may_be_zipped(server: GrpcServer, stub: Any, compression: grpc.Compression) -> None:
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
        code = stub.ModelInfer.future(request_of(2), timeout=1e-6).code()
        assert code in {Code.DEADLINE_EXCEEDED, Code.OK}
        told += code is Code.DEADLINE_EXCEEDED
        if told == 20:
            break
    assert told == 20
    watch = service_pb2.ServerReadyRequest()
    assert stub.ServerReady(watch, timeout=SECONDS).ready


def test_no_message_is_lost_in_a_stream_half_closed_at_once(server: GrpcServer, stub: Any) -> None:
    # The messages take longer to read than the end of the stream.
    sent = [request_of(300, seed) for seed in range(2)]
    for _ in range(100):
        answers = list(
            stub.ModelStreamInfer(iter(sent), compression=grpc.Compression.Gzip, timeout=SECONDS)
        )
        assert sorted(answer.infer_response.id for answer in answers) == ["0", "1"]


def test_asyncio_asks_for_everything_at_once(server: GrpcServer) -> None:
    async def ask() -> None:
        async with server.channel(grpc.aio) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
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
