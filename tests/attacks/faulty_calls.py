"""Connections whose calls each have a fault, drawn by chance: what is sent, and how it ends."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from random import Random

from tests.attacks.attacker import MIB, Target
from tests.attacks.grpc_attacks import OPENING
from tests.attacks.raw_http2 import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    INITIAL_WINDOW,
    PING,
    RESET,
    SETTINGS,
    WINDOW_UPDATE,
    block,
    frame,
    message,
    setting,
)

# A connection with more resets is told to calm down; the floods do that.
_MOST_CALLS = 6
_FRAME_BYTES = 16_000
_MOST_WINDOW = 2**31 - 1
_CLIENT_HELLO = bytes.fromhex("16030102000100") + b"\x01\xfc\x03\x03" + bytes(60)


class End(Enum):
    """What the client does when it has sent everything."""

    CLOSE = auto()
    RESET = auto()
    HALF_CLOSE = auto()  # and reads what comes
    READ = auto()  # a part of what comes, and closes
    STALL = auto()  # stays, and says nothing more


@dataclass(frozen=True, slots=True)
class FaultyConnection:
    """What a client sends on one connection.

    Attributes:
        sent: with the preface.
        calls: that it has, each with a fault.
    """

    sent: bytes
    calls: int
    end: End


def faulty_connection(random: Random, target: Target, *, tls: bool = False) -> FaultyConnection:
    """Draws a connection; each call has a fault of its own, or the fault that ends it."""
    end = random.choice(list(End))
    calls = random.randint(1, _MOST_CALLS)
    whole = [_CALL_FAULTS[random.randrange(len(_CALL_FAULTS))] for _ in range(calls)]
    parts = [make(random, target, 2 * at + 1) for at, make in enumerate(whole)]
    data = OPENING + b"".join(parts)
    last = random.randrange(5)
    if last == 0:
        data = data[: random.randrange(len(data))]
    elif last == 1:
        data += _broken_frame(random, target, 2 * calls + 1)
    elif last == 2:
        data = _altered(random, data)
    elif last == 3 and not tls:
        data = random.choice((_CLIENT_HELLO, b"GET / HTTP/1.1\r\n\r\n", random.randbytes(100)))
        calls = 1
    return FaultyConnection(data, calls, end)


def _headers(
    target: Target, stream: int, *more: tuple[bytes, bytes], flags: int = END_HEADERS, **odd: bytes
) -> bytes:
    return frame(HEADERS, flags, stream, block(odd.pop("path", target.path), more, **odd))


def _body(stream: int, data: bytes, *, ends: bool = True) -> bytes:
    parts = [data[at : at + _FRAME_BYTES] for at in range(0, len(data), _FRAME_BYTES)] or [b""]
    last = END_STREAM if ends else 0
    return b"".join(
        frame(DATA, last if at == len(parts) - 1 else 0, stream, part)
        for at, part in enumerate(parts)
    )


def _reset(random: Random, target: Target, stream: int) -> bytes:
    body = message(target.message)
    sent = _headers(target, stream)
    if random.random() < 0.8:
        ends = random.random() < 0.5
        sent += _body(stream, body if ends else body[: random.randrange(len(body))], ends=ends)
    return sent + frame(RESET, 0, stream, random.randrange(16).to_bytes(4, "big"))


def _unfinished(random: Random, target: Target, stream: int) -> bytes:
    body = message(target.message)
    return _headers(target, stream) + _body(stream, body[: random.randrange(len(body))], ends=False)


def _half_closed(random: Random, target: Target, stream: int) -> bytes:
    body = message(target.message)[: random.randrange(len(target.message))]
    if not body:
        return _headers(target, stream, flags=END_HEADERS | END_STREAM)
    return _headers(target, stream) + _body(stream, body)


def _wrong_prefix(random: Random, target: Target, stream: int) -> bytes:
    good = target.message
    body = random.choice(
        (
            message(good, length=random.getrandbits(32)),
            message(good, length=len(good) + random.randint(1, 9)),
            message(good, length=random.randrange(len(good))),
            message(good, compressed=random.randint(1, 255)),
            message(good) * 2,
        )
    )
    return _headers(target, stream) + _body(stream, body)


def _wrong_message(random: Random, target: Target, stream: int) -> bytes:
    text = bytearray(target.message)
    for _ in range(random.randint(1, 4)):
        text[random.randrange(len(text))] = random.randrange(256)
    if random.random() < 0.3:
        text = bytearray(random.randbytes(random.randrange(200)))
    packed = [(b"grpc-encoding", b"gzip")] if random.random() < 0.2 else []
    return _headers(target, stream, *packed) + _body(
        stream, message(bytes(text), compressed=len(packed))
    )


def _wrong_headers(random: Random, target: Target, stream: int) -> bytes:
    sent = random.choice(
        (
            _headers(
                target, stream, content_type=random.choice((b"application/json", b"", b"\xff"))
            ),
            _headers(target, stream, method=random.choice((b"GET", b"PUT", b"\xff"))),
            _headers(target, stream, path=b"/" + random.randbytes(8).hex().encode()),
            _headers(
                target, stream, (b"grpc-timeout", random.choice((b"1n", b"0n", b"-1S", b"x")))
            ),
            _headers(target, stream, (b"grpc-encoding", b"br")),
            _headers(target, stream, (b"content-length", b"3")),
            _headers(target, stream, (random.choice((b"X-Upper", b"x-\xff", b"", b":x")), b"v")),
            _headers(
                target, stream, (b"x-value", random.choice((b"a\0b", b"a\r\nb", b"\xff\xfe")))
            ),
        )
    )
    return sent + _body(stream, message(target.message))


def _window_games(random: Random, target: Target, stream: int) -> bytes:
    wide = frame(WINDOW_UPDATE, 0, stream, _MOST_WINDOW.to_bytes(4, "big"))
    games = (
        setting(INITIAL_WINDOW, random.choice((0, 1, 5, _MOST_WINDOW))),
        frame(WINDOW_UPDATE, 0, stream, bytes(4)),
        wide + wide,
        frame(WINDOW_UPDATE, 0, stream, random.randint(1, 1000).to_bytes(4, "big")) * 3,
    )
    call = _headers(target, stream) + _body(stream, message(target.message), ends=False)
    return call + random.choice(games) + _body(stream, b"")


def _oversized(random: Random, target: Target, stream: int) -> bytes:
    if random.random() < 0.5:
        text = block(target.path, [(b"x-large", b"v" * random.randint(8_000, 40_000))])
        cuts = range(0, len(text), _FRAME_BYTES)
        return b"".join(
            frame(
                CONTINUATION if at else HEADERS,
                END_HEADERS if at == cuts[-1] else 0,
                stream,
                text[at : at + _FRAME_BYTES],
            )
            for at in cuts
        )
    body = message(random.randbytes(40_000), length=random.choice((40_001, 100 * MIB, 2**32 - 1)))
    return _headers(target, stream) + _body(stream, body)


_CALL_FAULTS: tuple[Callable[[Random, Target, int], bytes], ...] = (
    _reset,
    _unfinished,
    _half_closed,
    _wrong_prefix,
    _wrong_message,
    _wrong_headers,
    _window_games,
    _oversized,
)


def _broken_frame(random: Random, target: Target, stream: int) -> bytes:
    """After which the connection may carry nothing more."""
    return random.choice(
        (
            frame(HEADERS, END_HEADERS, stream, random.randbytes(random.randint(1, 60))),
            frame(HEADERS, END_HEADERS, stream, b"\xff\xff\xff\xff\x0f"),
            frame(HEADERS, END_HEADERS, 0, block(target.path)),
            frame(HEADERS, END_HEADERS, 2, block(target.path)),
            frame(HEADERS, 0, stream, block(target.path)) + frame(PING, 0, 0, bytes(8)),
            frame(CONTINUATION, END_HEADERS, stream, block(target.path)),
            frame(DATA, 0, stream, b"x"),
            frame(DATA, 0, 0, b"x" * 20_000),
            frame(DATA, 8, 1, b"\xff"),
            frame(SETTINGS, 0, 0, bytes(5)),
            frame(SETTINGS, 1, 0, bytes(6)),
            frame(PING, 0, 0, bytes(random.choice((0, 7, 9)))),
            frame(WINDOW_UPDATE, 0, 0, bytes(4)),
            frame(RESET, 0, stream + 100, bytes(4)),
            frame(GOAWAY, 0, 0, bytes(8)) + _headers(target, stream),
            random.randbytes(3) + frame(random.randrange(256), 255, stream, bytes(40)),
        )
    )


def _altered(random: Random, data: bytes) -> bytes:
    """A few bytes changed, anywhere."""
    changed = bytearray(data)
    for _ in range(random.randint(1, 8)):
        changed[random.randrange(len(changed))] = random.randrange(256)
    return bytes(changed)
