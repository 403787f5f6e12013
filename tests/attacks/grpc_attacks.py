"""What hostile gRPC clients do: each attack is made until it is stopped."""

import itertools
from collections.abc import Callable

from tests.attacks.attacker import MIB, Attack, Attacker
from tests.attacks.raw_http2 import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    INITIAL_WINDOW,
    PING,
    PREFACE,
    PRIORITY,
    RESET,
    SETTINGS,
    WINDOW_UPDATE,
    block,
    frame,
    header,
    message,
    setting,
)

# Frames of a flood that are sent at once, and what ends one round of a flood without an end.
_AT_ONCE, _MOST_SENDS = 500, 200
_CANCEL = (8).to_bytes(4, "big")
OPENING = PREFACE + frame(SETTINGS, 0, 0, b"")
CLIENT_HELLO = bytes.fromhex("16030102000100") + b"\x01\xfc\x03\x03" + bytes(60)


def _headers(attacker: Attacker, stream: int, flags: int = END_HEADERS) -> bytes:
    return frame(HEADERS, flags, stream, block(attacker.target.path))


def _call(attacker: Attacker, stream: int) -> bytes:
    body = message(attacker.target.message)
    return _headers(attacker, stream) + frame(DATA, END_STREAM, stream, body)


def hold(connections: int, calls: int, begun: bytes = b"") -> Attack:
    """Calls of which no more is sent than the beginning of their messages."""

    def attack(attacker: Attacker) -> None:
        for _ in range(connections):
            client = attacker.connect()
            for stream in range(1, 2 * calls, 2):
                body = frame(DATA, 0, stream, begun) if begun else b""
                client.sendall(_headers(attacker, stream) + body)
        attacker.pause()

    return attack


def silent(connections: int, opening: bytes) -> Attack:
    def attack(attacker: Attacker) -> None:
        for _ in range(connections):
            attacker.connect(opening)
        attacker.pause()

    return attack


def slow(connections: int, make: Callable[[Attacker], bytes], opening: bytes = OPENING) -> Attack:
    def attack(attacker: Attacker) -> None:
        clients = [attacker.connect(opening) for _ in range(connections)]
        for byte in make(attacker):
            for client in clients:
                client.sendall(bytes([byte]))
            attacker.pause(0.02)
            if attacker.stopped:
                return

    return attack


def flood(piece: bytes, *, reads: bool = True, opening: bytes = OPENING) -> Attack:
    def attack(attacker: Attacker) -> None:
        with attacker.connect(opening) as client:
            for _ in range(_MOST_SENDS):
                if attacker.stopped:
                    return
                client.sendall(piece * _AT_ONCE)
                if reads:
                    client.recv(MIB)

    return attack


def endless_headers(more: bytes) -> Attack:
    def attack(attacker: Attacker) -> None:
        with attacker.connect() as client:
            client.sendall(_headers(attacker, 1, 0))
            for _ in range(_MOST_SENDS):
                client.sendall(more)

    return attack


def many_calls(make: Callable[[Attacker, int], bytes]) -> Attack:
    def attack(attacker: Attacker) -> None:
        with attacker.connect() as client:
            for first in range(1, 100_000, 200):
                client.sendall(b"".join(make(attacker, s) for s in range(first, first + 200, 2)))
                if attacker.stopped:
                    return

    return attack


def never_read(connections: int, *, opening: bytes, rounds: int) -> Attack:
    """Good calls whose answers are not read, and may not be sent with a window of 0."""

    def attack(attacker: Attacker) -> None:
        for _ in range(connections):
            client = attacker.connect(opening)
            try:
                for stream in range(1, 2 * rounds, 2):
                    client.sendall(_call(attacker, stream))
                    if attacker.stopped:
                        return
            except OSError:
                continue
        attacker.pause()

    return attack


def _refusals_unread(attacker: Attacker) -> None:
    client = attacker.connect()
    refused = block(b"/no.Such/Method")
    for first in itertools.count(1, 2000):
        calls = [
            frame(HEADERS, END_STREAM | END_HEADERS, s, refused)
            for s in range(first, first + 2000, 2)
        ]
        client.sendall(b"".join(calls))
        if attacker.stopped:
            return


def _too_wide_windows(attacker: Attacker) -> None:
    most = (2**31 - 1).to_bytes(4, "big")
    for stream in (0, 1):
        with attacker.connect() as client:
            client.sendall(_headers(attacker, 1) + frame(WINDOW_UPDATE, 0, stream, most) * 3)
            client.recv(MIB)
    with attacker.connect() as client:
        client.sendall(_headers(attacker, 1) + setting(INITIAL_WINDOW, 2**32 - 1))
        client.recv(MIB)


def _windows_up_and_down(attacker: Attacker) -> None:
    turns = setting(INITIAL_WINDOW, 0) + setting(INITIAL_WINDOW, 2**31 - 1)
    with attacker.connect() as client:
        for stream in range(1, 2001, 2):
            client.sendall(_headers(attacker, stream))
        for _ in range(_MOST_SENDS):
            client.sendall(turns * 20)
            if attacker.stopped:
                return


def _streams(attacker: Attacker) -> None:
    with attacker.connect() as client:
        paths = (
            b"/inference.GRPCInferenceService/ModelStreamInfer",
            b"/grpc.health.v1.Health/Watch",
            b"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        )
        for stream in range(1, 1001, 2):
            client.sendall(frame(HEADERS, END_HEADERS, stream, block(paths[stream // 2 % 3])))
            client.sendall(frame(DATA, 0, stream, message(b"")))
        attacker.pause(0.5)


def broken_frames(path: bytes, stream: int) -> tuple[bytes, ...]:
    """Each may end its connection."""
    return (
        frame(HEADERS, END_HEADERS, stream, b"\xff\xff\xff\xff\x0f"),
        frame(HEADERS, END_HEADERS, 0, block(path)),
        frame(HEADERS, END_HEADERS, 2, block(path)),
        frame(HEADERS, 0, stream, block(path)) + frame(PING, 0, 0, bytes(8)),
        frame(CONTINUATION, END_HEADERS, stream, block(path)),
        frame(DATA, 0, stream, b"x"),
        frame(DATA, 0, 0, bytes(20_000)),
        frame(DATA, 8, stream, b"\xff"),
        frame(SETTINGS, 0, 0, bytes(5)),
        frame(SETTINGS, 1, 0, bytes(6)),
        *(frame(PING, 0, 0, bytes(size)) for size in (0, 7, 9)),
        frame(WINDOW_UPDATE, 0, 0, bytes(4)),
        frame(RESET, 0, stream + 100, bytes(4)),
        frame(GOAWAY, 0, 0, bytes(8)) + frame(HEADERS, END_HEADERS, stream, block(path)),
        frame(99, 255, 2**31 - 1, bytes(100)),
    )


def _odd_bytes(attacker: Attacker) -> None:
    for begun in (
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        CLIENT_HELLO,
        bytes(100),
        b"\xff" * 100,
        *(OPENING + broken for broken in broken_frames(attacker.target.path, 1)),
        OPENING + _headers(attacker, 1)[:-3],
        PREFACE[:10],
    ):
        with attacker.connect(begun) as client:
            client.sendall(b"\0" * 100)
            client.recv(MIB)


# Messages that are begun: a prefix that promises 3,000 bytes or 120 KB, and some of them.
_SMALL, _LARGE = message(b"x" * 10, length=3000), message(b"x", length=120_000)

UNFINISHED: dict[str, Attack] = {
    "40 calls without a message": hold(1, 40),
    "200 calls without a message": hold(5, 40),
    "120,000 calls without a message": hold(60, 2000),
    "half-sent messages": hold(20, 100, _SMALL),
    "messages that promise all there is": hold(8, 1000, _LARGE),
    "messages byte by byte": slow(
        20, lambda a: _headers(a, 1) + b"".join(frame(DATA, 0, 1, b"\0") for _ in range(300))
    ),
    "headers byte by byte": slow(20, lambda a: _headers(a, 1, 0)),
    "headers without an end": silent(200, OPENING + frame(HEADERS, 0, 1, block(b"/a/b"))),
    "headers of which more comes always": endless_headers(
        frame(CONTINUATION, 0, 1, header(b"x-a", b"v" * 900)) * 100
    ),
    "headers of which nothing comes always": endless_headers(frame(CONTINUATION, 0, 1, b"") * 5000),
    "a preface byte by byte": slow(50, lambda _: PREFACE, b""),
    "silent connections": silent(1200, b""),
    "idle connections": silent(1200, OPENING),
    "streams that are opened and left": _streams,
}
FLOODS: dict[str, Attack] = {
    "rapid resets": many_calls(lambda a, s: _headers(a, s) + frame(RESET, 0, s, _CANCEL)),
    "resets of whole calls": many_calls(lambda a, s: _call(a, s) + frame(RESET, 0, s, _CANCEL)),
    "resets that the server is made to send": many_calls(
        lambda a, s: _headers(a, s) + frame(WINDOW_UPDATE, 0, s, bytes(4))
    ),
    "settings": flood(frame(SETTINGS, 0, 0, b"")),
    "settings, unread": flood(frame(SETTINGS, 0, 0, b""), reads=False),
    "pings": flood(frame(PING, 0, 0, b"12345678")),
    "pings, unread": flood(frame(PING, 0, 0, b"12345678"), reads=False),
    "priorities": flood(frame(PRIORITY, 0, 1, bytes(4) + b"\1"), reads=False),
    "empty data": flood(
        frame(DATA, 0, 1, b""),
        reads=False,
        opening=OPENING + frame(HEADERS, END_HEADERS, 1, block(b"/a/b")),
    ),
    "window updates": flood(frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\1"), reads=False),
    "windows too wide": _too_wide_windows,
    "windows up and down": _windows_up_and_down,
    "refusals, unread": _refusals_unread,
    "answers, unread": never_read(8, opening=OPENING, rounds=20_000),
    "answers that may not be sent": never_read(
        4, opening=PREFACE + setting(INITIAL_WINDOW, 0), rounds=8000
    ),
    "bytes that are none of HTTP/2": _odd_bytes,
}
