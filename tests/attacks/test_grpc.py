"""gRPC clients that flood, stall, hold calls, or send headers that gRPC has not."""

from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.attacks.attacker import Served, Target, withstand
from tests.attacks.conftest import INFER
from tests.attacks.grpc_attacks import FLOODS, UNFINISHED
from tests.attacks.raw_http2 import (
    DATA,
    END_STREAM,
    GOAWAY,
    HEADERS,
    RESET,
    Frame,
    block,
    body_frames,
    connect,
    frames,
    headers_frames,
    message,
)

ATTACKS = UNFINISHED | FLOODS
# Three at once, each of another kind.
GROUPS = [tuple(ATTACKS)[first::11] for first in range(11)]


@pytest.mark.parametrize("attacks", GROUPS, ids=" + ".join)
def test_others_are_answered_and_nothing_is_left(served: Served, attacks: tuple[str, ...]) -> None:
    withstand(served, *(ATTACKS[attack] for attack in attacks))


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
    "nearly gRPC": headers(kind=b"application/grpcx"),
    "CONNECT": headers(method=b"CONNECT"),
}


def outcome(address: str, sent: bytes) -> list[Frame]:
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
    return DATA in [one.kind for one in came] and came[-1].kind == HEADERS


@pytest.fixture
def good(served: Served) -> Iterator[Target]:
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
