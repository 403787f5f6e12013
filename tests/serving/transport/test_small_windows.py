"""Windows of streams while calls are refused on their headers: small, but for admitted calls."""

from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2_grpc

from serving.transport.events import EventReader
from serving.transport.http2_server import Http2Server
from tests.support.http2_peer import Peer, framed
from tests.support.servers import Ranker, RunningServer, good_inputs, infer_request, scores_of
from tests.support.silent_server import silent_server

PATH, UNKNOWN = "/test/Call", "/inference.GRPCInferenceService/Unknown"
USUAL, SMALL = 256 << 10, 4 << 10
PARTS = [150_000, 300_000, 400_000]


@pytest.fixture
def silent() -> Iterator[tuple[Http2Server, Peer]]:
    with silent_server(PATH) as (server, address), Peer(address) as peer:
        yield server, peer


def window_of(peer: Peer) -> int:
    return peer.http2.remote_settings.initial_window_size


def refuse(peer: Peer) -> None:
    """Make calls until windows are small; settings follow each other when acknowledged."""
    while True:
        assert peer.call(b"", path=UNKNOWN).status() == "12"
        if window_of(peer) == SMALL:
            return


def answer(server: Http2Server, peer: Peer, stream: int, message: bytes) -> None:
    """Answer the one call that came, which is to have this message."""
    reader = EventReader(server.fetch)
    while not (events := reader.fetch(1000)):
        assert events is not None
    (event,) = events
    assert event.message == message
    server.respond(event.call, b"answer")
    assert peer.wait(stream).messages() == [b"answer"]


def test_a_refused_call_sends_little_and_an_admitted_one_all(
    silent: tuple[Http2Server, Peer],
) -> None:
    server, peer = silent
    refuse(peer)
    message = bytes(range(256)) * 4000
    refused, admitted = peer.begin(path=UNKNOWN), peer.begin(path=PATH)
    peer.http2.send_data(refused, framed(message)[:SMALL])
    peer.put(admitted, framed(message), ends=True)
    assert peer.wait(refused).status() == "12"
    # Nothing was given back, and the rest of the message could not be sent.
    assert peer.answers[refused].reset == 0 and window_of(peer) == SMALL
    answer(server, peer, admitted, message)


def test_a_call_goes_on_while_windows_become_small_and_large_again(
    silent: tuple[Http2Server, Peer],
) -> None:
    server, peer = silent
    message = bytes(range(256)) * (sum(PARTS) // 256)
    sent, stream = framed(message), peer.begin(path=PATH)
    peer.put(stream, sent[: PARTS[0]])
    # The client has sent more than the small window has.
    refuse(peer)
    peer.put(stream, sent[PARTS[0] : sum(PARTS[:2])])
    peer.until(lambda: window_of(peer) == USUAL)
    peer.put(stream, sent[sum(PARTS[:2]) :], ends=True)
    answer(server, peer, stream, message)


def test_large_calls_and_streams_of_grpcio_go_on_beside_refused_calls(
    server: RunningServer, ranker: Ranker
) -> None:
    inputs = good_inputs(4096)
    request, expected = infer_request(inputs), ranker.predict(inputs)["score"]
    assert request.ByteSize() > USUAL
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(server.grpc_url, options=options) as channel:
        stub: Any = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        unknown = channel.unary_unary(UNKNOWN)
        streamed = stub.ModelStreamInfer(iter([request] * 30))
        for response in streamed:
            refusals = [unknown.future(bytes(100_000)) for _ in range(5)]
            scores = scores_of(stub.ModelInfer(request))["score"]
            assert np.array_equal(scores, expected) and not response.error_message
            codes = {refusal.code() for refusal in refusals}
            assert codes == {grpc.StatusCode.UNIMPLEMENTED}
