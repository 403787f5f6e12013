"""HTTP/2 as RFC 9113 allows it and few clients send it; Python's `h2` judges the answers."""

import ssl
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from h2.settings import SettingCodes
from hyperframe.frame import (
    ContinuationFrame,
    ExtensionFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PriorityFrame,
    WindowUpdateFrame,
)
from tritonclient.grpc import service_pb2

from tests.support.http2_peer import INFER, Answer, Peer, framed
from tests.support.servers import Ranker, RunningServer, good_inputs, infer_request, scores_of
from tests.support.tls import IssuedFiles

LARGEST_WINDOW = 2**31 - 1
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"


@dataclass(frozen=True, slots=True)
class PeerServer:
    address: str
    tls: ssl.SSLContext | None
    ranker: Ranker

    def peer(self, settings: dict[SettingCodes, int] | None = None, piece: int = 1 << 20) -> Peer:
        return Peer(self.address, tls=self.tls, settings=settings, piece=piece)

    def check(self, answer: Answer, batch: int, seed: int = 0) -> None:
        """The answer holds the scores of `good_inputs`."""
        assert answer.headers[":status"] == "200" and answer.status() == "0", answer
        assert answer.headers["content-type"] == "application/grpc"
        (message,) = answer.messages()
        scores = scores_of(service_pb2.ModelInferResponse.FromString(message))
        for name, expected in self.ranker.predict(good_inputs(batch, seed)).items():
            # Calls that arrive together run as one batch, which rounds differently.
            assert np.abs(scores[name] - expected).max() < 1e-5


def message_of(batch: int, seed: int = 0) -> bytes:
    message: bytes = infer_request(good_inputs(batch, seed)).SerializeToString()
    return message


@pytest.fixture(scope="module")
def server(running: tuple[RunningServer, IssuedFiles | None], ranker: Ranker) -> PeerServer:
    listening, files = running
    tls = None if files is None else files.context("h2")
    return PeerServer(listening.grpc_url, tls, ranker)


@pytest.fixture
def peer(server: PeerServer) -> Iterator[Peer]:
    with server.peer() as peer:
        yield peer


def test_a_call_may_come_one_byte_at_a_time(server: PeerServer) -> None:
    with server.peer(piece=1) as peer:
        server.check(peer.call(message_of(2)), 2)
        server.check(peer.call(message_of(3, 1)), 3, 1)


@pytest.mark.parametrize("padding", [0, 1, 255])
def test_headers_and_data_may_be_padded(server: PeerServer, peer: Peer, padding: int) -> None:
    def padded(frame: Frame) -> Iterable[Frame]:
        if isinstance(frame, HeadersFrame):
            frame.flags.add("PADDED")
            frame.pad_length = padding
        yield frame

    # More padding than the windows hold: it must be given back too.
    message = message_of(700)
    stream = peer.begin()
    peer.send(padded)
    for at in range(0, len(message) + 5, 50):
        ends = at + 50 >= len(message) + 5
        peer.put(stream, framed(message)[at : at + 50], ends=ends, padding=padding)
    server.check(peer.wait(stream), 700)


def test_headers_may_go_on_in_continuations(server: PeerServer, peer: Peer) -> None:
    parts = 8

    def split(frame: Frame) -> Iterable[Frame]:
        if not isinstance(frame, HeadersFrame):
            yield frame
            return
        block, size = frame.data, len(frame.data) // parts
        frame.data = block[:size]
        frame.flags.discard("END_HEADERS")
        yield frame
        for part in range(1, parts):
            last = part == parts - 1
            more = ContinuationFrame(frame.stream_id)
            more.data = block[part * size : None if last else (part + 1) * size]
            if last:
                more.flags.add("END_HEADERS")
            yield more

    server.check(peer.call(message_of(2), [("x-long", "v" * 4000)], rewrite=split), 2)


def test_calls_may_be_interleaved_by_a_few_bytes(server: PeerServer, peer: Peer) -> None:
    bodies = {peer.begin(): framed(message_of(2, seed)) for seed in range(20)}
    longest = max(map(len, bodies.values()))
    for at in range(0, longest, 7):
        for stream, body in bodies.items():
            if at < len(body):
                peer.put(stream, body[at : at + 7], ends=at + 7 >= len(body))
    for seed, stream in enumerate(bodies):
        server.check(peer.wait(stream), 2, seed)


def test_an_answer_comes_byte_by_byte_through_a_window_of_one_byte(server: PeerServer) -> None:
    with server.peer({SettingCodes.INITIAL_WINDOW_SIZE: 1}) as peer:
        answer = peer.call(message_of(2))
        server.check(answer, 2)
        assert set(answer.sizes) <= {0, 1}


def test_an_answer_waits_for_a_window_and_others_do_not(server: PeerServer) -> None:
    with server.peer({SettingCodes.INITIAL_WINDOW_SIZE: 0}) as peer:
        held = peer.begin()
        peer.put(held, framed(message_of(2)), ends=True)
        peer.until(lambda: peer.answers[held].headers)
        assert peer.answers[held].headers[":status"] == "200" and not peer.answers[held].body
        other = peer.begin()
        peer.put(other, framed(message_of(3, 1)), ends=True)
        peer.until(lambda: peer.answers[other].headers)
        peer.http2.increment_flow_control_window(60_000, other)
        peer.send()
        server.check(peer.wait(other), 3, 1)
        assert not peer.answers[held].body
        # A setting holds for streams that are open too.
        peer.http2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 60_000})
        peer.send()
        server.check(peer.wait(held), 2)


def test_windows_may_be_as_large_as_they_can(server: PeerServer) -> None:
    with server.peer({SettingCodes.INITIAL_WINDOW_SIZE: LARGEST_WINDOW}) as peer:
        peer.http2.increment_flow_control_window(LARGEST_WINDOW - 65_535)
        peer.send()
        server.check(peer.call(message_of(2000)), 2000)


def test_an_overflowing_window_ends_a_stream_or_connection(server: PeerServer, peer: Peer) -> None:
    stream = peer.begin()
    peer.send()
    frame = WindowUpdateFrame(stream)
    frame.window_increment = LARGEST_WINDOW
    peer.write(frame.serialize())
    assert peer.wait(stream).reset == 3  # FLOW_CONTROL_ERROR
    server.check(peer.call(message_of(2)), 2)
    frame.stream_id = 0
    peer.write(frame.serialize())
    peer.read_to_end()


def test_settings_may_change_during_a_call(server: PeerServer, peer: Peer) -> None:
    stream = peer.begin()
    body = framed(message_of(400))
    changes: list[dict[SettingCodes, int]] = [
        {SettingCodes.INITIAL_WINDOW_SIZE: 10, SettingCodes.HEADER_TABLE_SIZE: 0},
        {SettingCodes.MAX_FRAME_SIZE: 2**24 - 1},
        {SettingCodes.HEADER_TABLE_SIZE: 4096, SettingCodes.ENABLE_PUSH: 0},
        {SettingCodes.MAX_FRAME_SIZE: 16384, SettingCodes.INITIAL_WINDOW_SIZE: 3},
    ]
    for at, change in enumerate(changes):
        peer.put(stream, body[at * 5 : at * 5 + 5])
        peer.http2.update_settings(change)
        peer.send()
    peer.put(stream, body[20:], ends=True)
    peer.until(lambda: peer.acknowledged == 1 + len(changes))
    server.check(peer.wait(stream), 400)
    assert max(peer.answers[stream].sizes) <= 10


def test_headers_are_compressed_in_the_tables_that_the_client_allows(server: PeerServer) -> None:
    with server.peer({SettingCodes.HEADER_TABLE_SIZE: 0}) as peer:
        peer.http2.encoder.header_table_size = 0
        for seed in range(3):
            server.check(peer.call(message_of(2, seed)), 2, seed)
        peer.http2.update_settings({SettingCodes.HEADER_TABLE_SIZE: 4096})
        peer.send()
        for seed in range(3):
            server.check(peer.call(message_of(2, seed)), 2, seed)


@pytest.mark.parametrize("end", ["trailers", "an empty frame"])
def test_trailers_or_an_empty_frame_end_a_request(server: PeerServer, peer: Peer, end: str) -> None:
    stream = peer.begin()
    peer.put(stream, framed(message_of(2)))
    if end == "trailers":
        peer.http2.send_headers(stream, [("x-checksum", "1")], end_stream=True)
    else:
        peer.http2.send_data(stream, b"", end_stream=True)
    peer.send()
    server.check(peer.wait(stream), 2)


def test_priorities_and_unknown_frames_are_ignored(server: PeerServer, peer: Peer) -> None:
    stream = peer.begin()
    body = framed(message_of(2))
    peer.put(stream, body[:10])
    for number in (0, stream):
        unknown = ExtensionFrame(0xFA, number, flag_byte=0xFF, body=b"?" * 100)
        unknown.body_len = len(unknown.body)
        peer.write(unknown.serialize())
    priority = PriorityFrame(stream)
    priority.depends_on, priority.stream_weight, priority.exclusive = 0, 255, True
    peer.write(priority.serialize())
    idle = PriorityFrame(stream + 100)
    idle.depends_on, idle.stream_weight = stream, 3
    peer.write(idle.serialize())
    peer.put(stream, body[10:], ends=True)
    server.check(peer.wait(stream), 2)


def test_a_ping_comes_back_as_it_was(server: PeerServer, peer: Peer) -> None:
    stream = peer.begin()
    peer.send()
    peer.http2.ping(b"\0\1\2\3\xfc\xfd\xfe\xff")
    peer.send()
    peer.until(lambda: peer.pongs)
    assert peer.pongs == [b"\0\1\2\3\xfc\xfd\xfe\xff"]
    peer.put(stream, framed(message_of(2)), ends=True)
    server.check(peer.wait(stream), 2)


def test_calls_begun_before_a_clients_goaway_are_answered(server: PeerServer, peer: Peer) -> None:
    stream = peer.begin()
    body = framed(message_of(2))
    peer.put(stream, body[:10])
    peer.write(GoAwayFrame(0, last_stream_id=0).serialize())
    peer.put(stream, body[10:], ends=True)
    server.check(peer.wait(stream), 2)
    peer.read_to_end()


def test_a_stream_of_messages_may_be_cut_anywhere(server: PeerServer, peer: Peer) -> None:
    stream = peer.begin(path=STREAM)
    body = b"".join(framed(message_of(1 + seed % 3, seed)) for seed in range(6))
    for at in range(0, len(body), 11):
        peer.put(stream, body[at : at + 11], ends=at + 11 >= len(body))
    answer = peer.wait(stream)
    assert answer.status() == "0" and len(answer.messages()) == 6
    for text in answer.messages():
        response = service_pb2.ModelStreamInferResponse.FromString(text)
        assert response.error_message == "" and response.infer_response.model_name


def test_a_stream_without_messages_ends_well(server: PeerServer, peer: Peer) -> None:
    stream = peer.begin(path=STREAM, ends=True)
    peer.send()
    answer = peer.wait(stream)
    assert answer.status() == "0" and not answer.body


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([(":method", "GET")], "405"),
        ([("content-type", "application/json")], "415"),
        ([("content-type", "application/grpc+proto")], "200"),
        ([("content-type", "application/grpc;charset=utf-8")], "200"),
    ],
)
def test_what_is_no_call_is_told_so_by_http(
    server: PeerServer, peer: Peer, headers: list[tuple[str, str]], status: str
) -> None:
    answer = peer.call(message_of(2), headers)
    assert answer.headers[":status"] == status
    assert answer.headers.get("allow") == ("POST" if status == "405" else None)
    assert answer.reset in {None, 0} and peer.closed is False
    # With and without a body, and the connection stays.
    stream = peer.begin(headers, ends=True)
    peer.send()
    assert peer.wait(stream).headers[":status"] == status
    server.check(peer.call(message_of(2)), 2)


@pytest.mark.parametrize(
    ("headers", "path", "code"),
    [
        ([], "/no.such.Service/Method", "12"),
        ([("grpc-encoding", "snappy")], INFER, "12"),
        ([("grpc-timeout", "soon")], INFER, "3"),
        ([("grpc-timeout", "123456789S")], INFER, "3"),
        ([("grpc-timeout", "99999999H")], INFER, "0"),
    ],
)
def test_a_refusal_has_a_status_and_the_connection_stays(
    server: PeerServer, peer: Peer, headers: list[tuple[str, str]], path: str, code: str
) -> None:
    answer = peer.call(message_of(2), headers, path=path)
    assert answer.headers[":status"] == "200" and answer.status() == code
    assert answer.reset in {None, 0}
    server.check(peer.call(message_of(2)), 2)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "3"),
        (b"\0\0", "3"),
        (framed(b"abcdef")[:-1], "3"),
        (framed(b"") + framed(b""), "12"),
        (b"\2" + framed(b"a")[1:], "3"),
        (b"\1" + framed(b"a")[1:], "13"),
        (b"\0\xff\xff\xff\xff", "8"),
    ],
    ids=["none", "no prefix", "cut off", "two", "a flag", "compressed", "huge"],
)
def test_odd_bodies_have_a_status(server: PeerServer, peer: Peer, body: bytes, code: str) -> None:
    stream = peer.begin()
    peer.send()
    peer.http2.send_data(stream, body, end_stream=True)
    peer.send()
    assert peer.wait(stream).status() == code
    server.check(peer.call(message_of(2)), 2)
