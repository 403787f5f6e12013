"""Calls whose headers, prefixes or messages are not as gRPC has them: each is refused alone."""

import gzip
import zlib
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.attacks.attacker import Served, Target
from tests.attacks.conftest import INFER
from tests.attacks.raw_http2 import (
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    RESET,
    Frame,
    block,
    body_frames,
    connect,
    frame,
    frames,
    headers_frames,
    message,
)

MIB = 2**20


def headers(*more: tuple[bytes, bytes], path: bytes = INFER, **other: bytes) -> bytes:
    return block(path, more, **other)


# What is taken as if nothing were odd about it.
HARMLESS = {
    "bytes FF in a value": headers((b"x-name", b"a\xff\xfeb")),
    "base64 that is none": headers((b"x-data-bin", b"!!!*")),
    "a traceparent that is none": headers((b"traceparent", b"\xff\0"[:1] * 55)),
    "an accepted encoding that is none": headers((b"grpc-accept-encoding", b"\xff")),
}
REFUSED = {
    "an index that is none": b"\xff\xff\xff\xff\x0f",
    "bytes FF in the path": headers(path=INFER + b"\xff\xfe"),
    "NUL in a value": headers((b"x-name", b"a\0b")),
    "a line's end in a value": headers((b"x-name", b"a\r\nb: c")),
    "upper case in a name": headers((b"X-Name", b"a")),
    "bytes FF in a name": headers((b"x-\xff", b"a")),
    "no path": block(INFER).replace(b"\0\x05:path", b"\0\x05xpath"),
    "two paths": headers((b":path", INFER)),
    "an empty path": headers(path=b""),
    "an unknown method": headers(path=b"/inference.GRPCInferenceService/Nothing"),
    "a pseudo-header that is none": headers((b":status", b"200")),
    "connection": headers((b"connection", b"close")),
    "a wrong length of content": headers((b"content-length", b"3")),
    "a huge value": headers((b"x-name", b"v" * 60_000)),
    "many headers": headers(*((b"x-%d" % n, b"v") for n in range(2000))),
    "a timeout that is none": headers((b"grpc-timeout", b"\xff\xff")),
    "a negative timeout": headers((b"grpc-timeout", b"-1S")),
    "no time": headers((b"grpc-timeout", b"0n")),
    "an unknown encoding": headers((b"grpc-encoding", b"\xff")),
    "nearly gRPC": headers(content_type=b"application/grpcx"),
    "CONNECT": headers(method=b"CONNECT"),
}


def zipped(size: int) -> bytes:
    """Zeros that are a thousandth of themselves."""
    return gzip.compress(bytes(size), 9)


def messages(good: bytes) -> dict[str, tuple[bytes, bytes]]:
    """Headers and bodies that must be refused."""
    plain, packed = headers(), headers((b"grpc-encoding", b"gzip"))
    return {
        "a promise of less": (plain, message(good, length=len(good) // 2)),
        "compressed as another": (packed, message(zlib.compress(good), compressed=1)),
        "compressed and cut off": (packed, message(gzip.compress(good)[:-20], compressed=1)),
        "compressed to a thousandth": (packed, message(zipped(80 * MIB), compressed=1)),
        "compressed twice": (
            packed, message(gzip.compress(zipped(80 * MIB)), compressed=1)
        ),
        "no protobuf": (plain, message(b"\xff" * 50)),
    }  # fmt: skip


def outcome(address: str, sent: bytes) -> list[Frame]:
    """What comes back for stream 1, up to the end of it or of the connection."""
    with connect(address) as client:
        came = []
        # A server that has refused the first bytes may have closed before the last.
        with suppress(ConnectionError):
            client.sendall(sent)
        for one in frames(client):
            if one.kind == GOAWAY or one.stream == 1:
                came.append(one)
            if one.kind in (GOAWAY, RESET) and one.stream in (0, 1):
                break
            if one.stream == 1 and one.kind in (HEADERS, DATA) and one.flags & END_STREAM:
                break
        return came


def is_answered(came: list[Frame]) -> bool:
    """Whether a message came, and the call ended well."""
    return DATA in [one.kind for one in came] and came[-1].kind == HEADERS


@pytest.fixture
def good(served: Served) -> Iterator[Target]:
    """The server, which still answers afterwards."""
    target = served.target
    yield target
    sent = headers_frames(headers()) + body_frames(message(target.message))
    came = outcome(target.address, sent)
    assert is_answered(came)
    assert b"".join(one.payload for one in came if one.kind == DATA)[5:] == served.answer


@pytest.mark.parametrize("kind", HARMLESS)
def test_what_harms_nobody_is_answered(good: Target, kind: str) -> None:
    sent = headers_frames(HARMLESS[kind]) + body_frames(message(good.message))
    assert is_answered(outcome(good.address, sent))


@pytest.mark.parametrize("kind", REFUSED)
def test_headers_that_are_wrong_are_refused(good: Target, kind: str) -> None:
    sent = headers_frames(REFUSED[kind]) + body_frames(message(good.message))
    came = outcome(good.address, sent)
    assert came and not is_answered(came), came


@pytest.mark.parametrize("kind", messages(b""))
def test_messages_that_are_wrong_are_refused(good: Target, kind: str) -> None:
    head, body = messages(good.message)[kind]
    came = outcome(good.address, headers_frames(head) + body_frames(body))
    assert came and not is_answered(came), came


def test_trailers_end_a_call_and_are_not_looked_at(good: Target) -> None:
    body = frame(DATA, 0, 1, message(good.message))
    trailers = b"\0\x06x-name\x01a"
    for last, answered in (
        (frame(HEADERS, END_STREAM | END_HEADERS, 1, trailers), True),
        (frame(HEADERS, END_HEADERS, 1, trailers), False),
        (frame(HEADERS, END_STREAM | END_HEADERS, 1, headers()), False),
    ):
        came = outcome(good.address, headers_frames(headers()) + body + last)
        assert is_answered(came) is answered, came
