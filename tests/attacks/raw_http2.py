"""HTTP/2 as bytes, for what no client library would send."""

import socket
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RESET, SETTINGS = 0, 1, 2, 3, 4
PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 6, 7, 8, 9
END_STREAM, ACK, END_HEADERS = 1, 1, 4
INITIAL_WINDOW = 4
_FRAME_BYTES = 16_000
GRPC = b"application/grpc"
Pairs = Iterable[tuple[bytes, bytes]]


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """A frame (RFC 9113, 4.1)."""
    size = len(payload).to_bytes(3, "big")
    return size + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def header(name: bytes, value: bytes) -> bytes:
    """A literal header without indexing and without Huffman's code (RFC 7541, 6.2.2)."""
    return b"\0" + _text(name) + _text(value)


def _text(text: bytes) -> bytes:
    if len(text) < 127:
        return bytes([len(text)]) + text
    length, left = b"\x7f", len(text) - 127
    while left >= 128:
        length += bytes([left % 128 + 128])
        left //= 128
    return length + bytes([left]) + text


def block(path: bytes, more: Pairs = (), *, method: bytes = b"POST", kind: bytes = GRPC) -> bytes:
    """A gRPC call's headers, encoded; the path is `/service/Method`."""
    return b"".join(
        header(name, value)
        for name, value in (
            (b":method", method),
            (b":scheme", b"http"),
            (b":path", path),
            (b":authority", b"x"),
            (b"content-type", kind),
            (b"te", b"trailers"),
            *more,
        )
    )


def headers_frames(text: bytes, stream: int = 1) -> bytes:
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


def body_frames(body: bytes, stream: int = 1, *, ends: bool = True) -> bytes:
    """DATA of any size; the last frame ends the stream."""
    parts = [body[at : at + _FRAME_BYTES] for at in range(0, len(body), _FRAME_BYTES)] or [b""]
    flags = [0] * (len(parts) - 1) + [END_STREAM if ends else 0]
    return b"".join(frame(DATA, flag, stream, p) for flag, p in zip(flags, parts, strict=True))


def message(text: bytes, *, compressed: int = 0, length: int | None = None) -> bytes:
    """A message with gRPC's prefix, which may lie about its length."""
    size = len(text) if length is None else length
    return bytes([compressed]) + size.to_bytes(4, "big") + text


def setting(name: int, value: int) -> bytes:
    return frame(SETTINGS, 0, 0, name.to_bytes(2, "big") + value.to_bytes(4, "big"))


class Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    payload: bytes


def frames(client: socket.socket, *, credit: bool = True) -> Iterator[Frame]:
    """The frames that come until the peer closes; acknowledges SETTINGS and PING."""
    read = bytearray()
    while True:
        while len(read) >= 9 and len(read) >= 9 + int.from_bytes(read[:3], "big"):
            size = int.from_bytes(read[:3], "big")
            kind, flags, stream = read[3], read[4], int.from_bytes(read[5:9], "big")
            payload = bytes(read[9 : 9 + size])
            del read[: 9 + size]
            # A peer that has closed already may have sent more before.
            with suppress(ConnectionError):
                if kind == SETTINGS and not flags & ACK:
                    client.sendall(frame(SETTINGS, ACK, 0, b""))
                elif kind == PING and not flags & ACK:
                    client.sendall(frame(PING, ACK, 0, payload))
                elif kind == DATA and credit and payload:
                    client.sendall(frame(WINDOW_UPDATE, 0, 0, len(payload).to_bytes(4, "big")))
            yield Frame(kind, flags, stream, payload)
        try:
            more = client.recv(65536)
        except (ConnectionError, BrokenPipeError):
            return
        if not more:
            return
        read += more


def connect(
    address: str, *, source: str = "127.0.0.1", opening: bytes | None = None
) -> socket.socket:
    """A connection from an address that has sent its preface, or something else first."""
    host, _, port = address.rpartition(":")
    client = socket.create_connection((host, int(port)), 20, (source, 0))
    client.sendall(PREFACE + frame(SETTINGS, 0, 0, b"") if opening is None else opening)
    return client
