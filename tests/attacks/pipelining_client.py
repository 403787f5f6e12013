"""An honest client with many calls in flight on a connection, with TLS or without."""

import socket
import ssl

from tests.attacks.attacker import Target
from tests.attacks.grpc_attacks import OPENING
from tests.attacks.raw_http2 import (
    DATA,
    END_STREAM,
    GOAWAY,
    HEADERS,
    RESET,
    block,
    body_frames,
    connect,
    frames,
    headers_frames,
    message,
)

_SECONDS = 120.0


class PipeliningClient:
    """One connection."""

    def __init__(self, target: Target, tls: ssl.SSLContext | None) -> None:
        self._client = secured(connect(target.address, opening=b""), tls)
        self._client.settimeout(_SECONDS)
        self._client.sendall(OPENING)
        self._target = target
        self._frames = frames(self._client)
        self._next = 1

    def close(self) -> None:
        self._client.close()

    def send(self, messages: list[bytes]) -> dict[int, bytes]:
        """Begins calls; returns their messages by their streams."""
        streams = range(self._next, self._next + 2 * len(messages), 2)
        head = block(self._target.path)
        self._client.sendall(
            b"".join(
                headers_frames(head, stream) + body_frames(message(text), stream)
                for stream, text in zip(streams, messages, strict=True)
            )
        )
        self._next += 2 * len(messages)
        return dict(zip(streams, messages, strict=True))

    def answers(self, streams: set[int]) -> dict[int, bytes]:
        """The answer to each call; none where it failed."""
        bodies = dict.fromkeys(streams, b"")
        left = set(streams)
        for one in self._frames:
            if one.kind == DATA:
                bodies[one.stream] += one.payload
            if one.kind in (HEADERS, DATA) and one.flags & END_STREAM:
                left.discard(one.stream)
            if one.kind in (RESET, GOAWAY) or not left:
                break
        return {stream: body[5:] for stream, body in bodies.items() if stream not in left}


def secured(client: socket.socket, tls: ssl.SSLContext | None) -> socket.socket:
    """The connection, over TLS where there is a context."""
    return client if tls is None else tls.wrap_socket(client, server_hostname="127.0.0.1")
