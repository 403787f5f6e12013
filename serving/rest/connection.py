"""HTTP/1.1 connections that slow, silent and too many clients cannot hold up.

uvicorn waits for a request's headers without end; here there is a time for them.
"""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

_JSON_HEADERS = [(b"content-type", b"application/json"), (b"connection", b"close")]


class JoinedHead(h11.Connection):
    """Writes an answer's head together with the body's first part: one segment, not two."""

    _head = b""

    def send(self, event: h11.Event) -> bytes | None:  # type: ignore[override]  # its overloads
        """The bytes of an event; of an answer's head none, until what follows it is sent."""
        data = super().send(event)
        if isinstance(event, h11.Response):
            self._head = data or b""
            return b""
        head, self._head = self._head, b""
        return head + data if head and data is not None else data


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What HTTP clients are held to.

    Attributes:
        max_connections: of a process; one more is closed at once.
        header_bytes: of a request's line and headers.
        header_seconds: for them, from the connection's or the request's first byte.
        body_bytes: of a request's body, as it comes and decompressed.
        body_seconds: for the whole body.
        idle_seconds: between a response and the next request.
    """

    max_connections: int = 1024
    header_bytes: int = 16 * 1024
    header_seconds: float = 10.0
    body_bytes: int = 64 * 2**20
    body_seconds: float = 60.0
    idle_seconds: float = 75.0


class LimitedConnection(H11Protocol):
    """One client's connection.

    Attributes:
        limits: what it is held to.
    """

    limits = HttpLimits()

    _header_timer: asyncio.TimerHandle | None = None

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.conn = JoinedHead(h11.SERVER, self.limits.header_bytes)

    def connection_made(self, transport: Any) -> None:
        """A client has connected: one too many is cut off."""
        super().connection_made(transport)
        if len(self.connections) > self.limits.max_connections:
            self.connections.discard(self)
            transport.abort()
            return
        self._watch_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone, or was sent away."""
        self._unwatch()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        super().data_received(data)
        self._watch_headers()

    def send_400_response(self, msg: str) -> None:
        """Refuses what is no HTTP, and closes."""
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            body = json.dumps({"error": msg}).encode()
            length = (b"content-length", str(len(body)).encode())
            events = (
                h11.Response(status_code=400, headers=[*_JSON_HEADERS, length]),
                h11.Data(data=body),
                h11.EndOfMessage(),
            )
            for event in events:
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _watch_headers(self) -> None:
        # IDLE: no request has come, or not all of its headers.
        if self.conn.their_state is not h11.IDLE:
            self._unwatch()
        elif self._header_timer is None:
            self._header_timer = self.loop.call_later(self.limits.header_seconds, self._give_up)

    def _unwatch(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _give_up(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()


def connection_class(limits: HttpLimits) -> type[H11Protocol]:
    """Uvicorn's connections, held to limits.

    Args:
        limits: of each.
    """
    return type("Connection", (LimitedConnection,), {"limits": limits})
