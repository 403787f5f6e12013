"""HTTP/2 as bytes, for headers that no client library would send."""

import socket
from collections.abc import Iterable

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEADERS, _SETTINGS = 1, 4
_END_STREAM, _END_HEADERS = 1, 4


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """A frame (RFC 9113, 4.1)."""
    return (
        len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload
    )


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


def call(path: bytes, stream: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The headers of a gRPC call, which ends with them.

    Args:
        path: `/service/Method`.
        stream: odd, and higher than those before on the connection.
        headers: more of them.
    """
    block = b"".join(
        header(name, value)
        for name, value in (
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", path),
            (b":authority", b"x"),
            (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
            *headers,
        )
    )
    return frame(_HEADERS, _END_STREAM | _END_HEADERS, stream, block)


def connect(address: str) -> socket.socket:
    """A connection that has sent its preface.

    Args:
        address: HOST:PORT.
    """
    host, _, port = address.rpartition(":")
    client = socket.create_connection((host, int(port)), 20)
    client.sendall(_PREFACE + frame(_SETTINGS, 0, 0, b""))
    return client
