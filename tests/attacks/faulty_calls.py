"""Connections whose calls each have a fault, drawn by chance: what is sent, and how it ends."""

import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from random import Random

from tests.attacks.attacker import MIB, Target
from tests.attacks.grpc_attacks import CLIENT_HELLO, OPENING, broken_frames
from tests.attacks.raw_http2 import (
    END_HEADERS,
    END_STREAM,
    HEADERS,
    INITIAL_WINDOW,
    RESET,
    WINDOW_UPDATE,
    block,
    body_frames,
    frame,
    headers_frames,
    message,
    setting,
)
from tests.attacks.test_grpc import REFUSED

# A connection with more resets is told to calm down; the floods do that.
_MOST_CALLS = 6
_MOST_WINDOW = 2**31 - 1


class End(Enum):
    """What the client does when it has sent everything."""

    CLOSE = auto()
    RESET = auto()
    HALF_CLOSE = auto()  # and reads what comes
    READ = auto()  # a part of what comes, and closes
    STALL = auto()  # stays, and says nothing more


@dataclass(frozen=True, slots=True)
class FaultyConnection:
    """Bytes of one connection, with the preface, and the number of calls in them."""

    sent: bytes
    calls: int
    end: End


def faulty_connection(random: Random, target: Target, *, tls: bool = False) -> FaultyConnection:
    """Draws a connection; each call has a fault of its own, or the fault that ends it."""
    end = random.choice(list(End))
    calls = random.randint(1, _MOST_CALLS)
    faults = random.choices(_CALL_FAULTS, k=calls)
    parts = [make(random, target, 2 * at + 1) for at, make in enumerate(faults)]
    data = OPENING + b"".join(parts)
    last = random.randrange(5)
    if last == 0:
        data = data[: random.randrange(len(data))]
    elif last == 1:
        noise = frame(HEADERS, END_HEADERS, 2 * calls + 1, random.randbytes(random.randint(1, 60)))
        data += random.choice((noise, *broken_frames(target.path, 2 * calls + 1)))
    elif last == 2:
        data = altered(random, data)
    elif last == 3 and not tls:
        data = random.choice((CLIENT_HELLO, b"GET / HTTP/1.1\r\n\r\n", random.randbytes(100)))
        calls = 1
    return FaultyConnection(data, calls, end)


def _call(target: Target, stream: int, body: bytes, *, ends: bool = True) -> bytes:
    return headers_frames(block(target.path), stream) + body_frames(body, stream, ends=ends)


def _reset(random: Random, target: Target, stream: int) -> bytes:
    body = message(target.message)
    ends = random.random() < 0.5
    sent = headers_frames(block(target.path), stream)
    if random.random() < 0.8:
        sent = _call(target, stream, body if ends else _part(random, body), ends=ends)
    return sent + frame(RESET, 0, stream, random.randrange(16).to_bytes(4, "big"))


def _unfinished(random: Random, target: Target, stream: int) -> bytes:
    return _call(target, stream, _part(random, message(target.message)), ends=False)


def _half_closed(random: Random, target: Target, stream: int) -> bytes:
    if random.random() < 0.2:
        return frame(HEADERS, END_HEADERS | END_STREAM, stream, block(target.path))
    return _call(target, stream, _part(random, message(target.message)))


def _part(random: Random, body: bytes) -> bytes:
    return body[: random.randrange(len(body))]


def _wrong_prefix(random: Random, target: Target, stream: int) -> bytes:
    good = target.message
    bodies = (
        message(good, length=random.getrandbits(32)),
        message(good, length=len(good) + random.randint(1, 9)),
        message(good, length=random.randrange(len(good))),
        message(good, compressed=random.randint(1, 255)),
        message(good) * 2,
        message(random.randbytes(40_000), length=random.choice((40_001, 100 * MIB, 2**32 - 1))),
    )
    return _call(target, stream, random.choice(bodies))


def _wrong_message(random: Random, target: Target, stream: int) -> bytes:
    text = altered(random, target.message)
    if random.random() < 0.3:
        text = random.randbytes(random.randrange(200))
    packed = [(b"grpc-encoding", b"gzip")] if random.random() < 0.2 else []
    body = body_frames(message(text, compressed=len(packed)), stream)
    return headers_frames(block(target.path, packed), stream) + body


def _wrong_headers(random: Random, target: Target, stream: int) -> bytes:
    head = random.choice(list(REFUSED.values()))
    return headers_frames(head, stream) + body_frames(message(target.message), stream)


def _window_games(random: Random, target: Target, stream: int) -> bytes:
    wide = frame(WINDOW_UPDATE, 0, stream, _MOST_WINDOW.to_bytes(4, "big"))
    games = (
        setting(INITIAL_WINDOW, random.choice((0, 1, 5, _MOST_WINDOW))),
        frame(WINDOW_UPDATE, 0, stream, bytes(4)),
        wide + wide,
        frame(WINDOW_UPDATE, 0, stream, random.randint(1, 1000).to_bytes(4, "big")) * 3,
    )
    call = _call(target, stream, message(target.message), ends=False)
    return call + random.choice(games) + body_frames(b"", stream)


_CALL_FAULTS: tuple[Callable[[Random, Target, int], bytes], ...] = (
    _reset,
    _unfinished,
    _half_closed,
    _wrong_prefix,
    _wrong_message,
    _wrong_headers,
    _window_games,
)


def altered(random: Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(random.randint(1, 8)):
        changed[random.randrange(len(changed))] = random.randrange(256)
    return bytes(changed)


def client_hello(tls: ssl.SSLContext) -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        tls.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1").do_handshake()
    return outgoing.read()
