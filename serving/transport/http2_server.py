"""A server of gRPC, or of HTTP/1.1, as events and replies in Python's values.

Compiled code owns the sockets, HTTP, TLS, admission and limits, in one thread without the GIL.
The caller's threads fetch events, many at once, and reply to calls by their numbers.
"""

import ctypes
import socket
from collections.abc import Iterable, Sequence
from typing import Any

from serving.abi import transport as abi
from serving.security.access import Credential
from serving.security.guard import Guard
from serving.security.tls import TlsFiles
from serving.status import Status
from serving.transport.events import metadata_pair
from serving.transport.library import check_libraries
from serving.transport.limits import ACCESS_BITS, HttpRoute, Limits, Method
from sharded_infer.errors import InputError, InternalError

_ERROR_BYTES = 512


class Http2Server:
    """Answers at once; `fetch` returns incoming calls. Thread-safe."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        methods: Sequence[Method],
        limits: Limits,
        *,
        tls: TlsFiles | None,
        guard: Guard | None = None,
        busy_poll_seconds: float = 0.0,
        http_listeners: Sequence[socket.socket] = (),
        routes: Sequence[HttpRoute] = (),
        answers_once: bool = False,
    ) -> None:
        """Starts the I/O thread; takes nonblocking listeners over, also on an error.

        Args:
            listeners: for gRPC.
            guard: None admits every call.
            busy_poll_seconds: how long a thread polls for calls before it sleeps.
            http_listeners: for HTTP/1.1.
            routes: of HTTP/1.1; the method of an event is the route's position after the methods.
            answers_once: connections of HTTP/1.1 close after their first answer.

        Raises:
            InputError: a library is missing, or the certificates cannot be used.
        """
        check_libraries()
        listed = (abi.Method * len(methods))(
            *(abi.Method(m.path.encode(), m.kind, int(m.access), m.with_headers) for m in methods)
        )
        paths = (abi.Route * len(routes))(
            *(
                abi.Route(r.verb.encode(), r.path.encode(), int(r.access), r.is_probe, r.max_body)
                for r in routes
            )
        )
        sockets, http_sockets = _descriptors(listeners), _descriptors(http_listeners)
        tokens, token_count = _token_structs(None if guard is None else guard.credentials)
        rates_of = None if guard is None else guard.rates_of
        settings = abi.Settings(
            listeners=ctypes.addressof(sockets),
            listener_count=len(listeners),
            methods=ctypes.addressof(listed),
            method_count=len(methods),
            http_listeners=ctypes.addressof(http_sockets),
            http_listener_count=len(http_listeners),
            routes=ctypes.addressof(paths),
            route_count=len(paths),
            http_answers_once=answers_once,
            tokens=ctypes.addressof(tokens),
            token_count=token_count,
            rates_of=None if rates_of is None else rates_of.address,
            certificate=None if tls is None else bytes(tls.certificate),
            key=None if tls is None else bytes(tls.key),
            client_ca=None if tls is None or tls.client_ca is None else bytes(tls.client_ca),
            max_message_bytes=limits.message_bytes,
            max_held_bytes=limits.held_bytes,
            max_connections=limits.connections,
            max_address_connections=limits.address_connections,
            max_connection_calls=limits.connection_calls,
            max_calls=limits.calls,
            max_header_bytes=limits.header_bytes,
            max_stream_messages=limits.stream_messages,
            max_streams=limits.streams,
            handshake_seconds=limits.handshake_seconds,
            message_seconds=limits.message_seconds,
            idle_seconds=limits.idle_seconds,
            stalled_seconds=limits.stalled_seconds,
            keepalive_seconds=limits.keepalive_seconds,
            keepalive_timeout_seconds=limits.keepalive_timeout_seconds,
            least_ping_seconds=limits.least_ping_seconds,
            age_seconds=limits.age_seconds,
            grace_seconds=limits.grace_seconds,
            rate=limits.rate,
            burst=limits.burst,
            busy_poll_seconds=busy_poll_seconds,
        )
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        # Their memory must live as long as the server.
        self._kept = (sockets, http_sockets, listed, paths, tokens, settings)
        self._handle = abi.transport_start(settings, error, _ERROR_BYTES)
        for one in (*listeners, *http_listeners):
            one.detach() if self._handle else one.close()
        if not self._handle:
            raise InputError(error.value.decode(errors="replace"))
        self._backlog = 0.0
        self.counters: abi.Counters = abi.transport_counters(self._handle).contents
        if guard is not None:
            guard.attach(self)

    @property
    def answering(self) -> tuple[int, int, int, int, int]:
        """Addresses of what answers, ends, flushes and refuses messages, and of the server."""
        return (
            _address_of(abi.transport_respond),
            _address_of(abi.transport_finish),
            _address_of(abi.transport_flush),
            _address_of(abi.transport_refuse_message),
            self._handle,
        )

    @property
    def answering_http(self) -> tuple[int, int, int]:
        """Those that answer and end a request of HTTP/1.1; the answers wait for `flush`."""
        respond = abi.transport_respond_http_later
        return _address_of(respond), _address_of(abi.transport_finish), self._handle

    @property
    def address(self) -> int:
        """Address of the compiled server."""
        address: int = self._handle
        return address

    def fetch(self, events: int, held: int, most: int, milliseconds: int) -> int:
        """Fills `events`, an address of `most` structs, whose first `held` are given back."""
        count: int = abi.transport_fetch(self._handle, events, held, most, milliseconds)
        return count

    def hold_replies(self) -> None:
        """Buffers the calling thread's replies to this server until its `flush` or `fetch`."""
        abi.transport_hold(self._handle)

    def flush(self) -> None:
        """Sends buffered replies. The system call takes longer than the replies."""
        abi.transport_flush(self._handle)

    def respond(self, call: int, message: bytes) -> None:
        """Answers a unary call."""
        abi.transport_respond(self._handle, call, message, len(message), 1)

    def respond_http(self, call: int, lines: bytes, body: bytes) -> None:
        """Answers a request of HTTP/1.1; `lines` are its status and headers, with line breaks."""
        abi.transport_respond_http(self._handle, call, lines, len(lines), body, len(body))

    def send(self, call: int, message: bytes) -> None:
        """Sends a message of a stream."""
        abi.transport_respond(self._handle, call, message, len(message), 0)

    def finish(
        self, call: int, status: Status | None, trailers: Iterable[tuple[str, str | bytes]] = ()
    ) -> None:
        """Ends a call; None: OK, after the messages that were sent."""
        code, words = (0, b"") if status is None else (status.code.number, status.message.encode())
        pairs = b"".join(metadata_pair(name, value) for name, value in trailers)
        abi.transport_finish(self._handle, call, code, words, len(words), pairs, len(pairs))

    def refuse_message(self, call: int, message: bytes, status: Status) -> None:
        """Answers a message of a stream, or ends the stream if its client asks for that."""
        words = status.message.encode()
        abi.transport_refuse_message(
            self._handle, call, message, len(message), status.code.number, words, len(words)
        )

    def set_tokens(self, credentials: Sequence[Credential] | None) -> None:
        """Replaces the tokens; None: calls need none.

        Raises InputError if OpenSSL, which hashes them, is missing.
        """
        tokens, count = _token_structs(credentials)
        if not abi.transport_set_tokens(self._handle, tokens, count):
            raise InputError("tokens: OpenSSL 3 is not installed: libssl.so.3, libcrypto.so.3")

    def set_fixed_answer(self, method: int, message: bytes, answer: bytes) -> None:
        """Sets an open unary method's answer to this very message, which Python does not get."""
        abi.transport_set_fixed_answer(
            self._handle, method, message, len(message), answer, len(answer)
        )

    def set_backlog(self, seconds: float) -> None:
        """Refuses predict calls with less time than this before their messages are read."""
        # Calls that came since count beside an equal backlog, too.
        if seconds == self._backlog == 0.0:
            return
        self._backlog = seconds
        abi.transport_set_backlog(self._handle, seconds)

    def set_urgent_lead(self, seconds: float) -> None:
        """Sets how far an unread call may go before others with its deadline."""
        abi.transport_set_urgent_lead(self._handle, seconds)

    def drain_streams(self) -> None:
        """Accepts no more streams of calls; ends each once what was read of it is answered."""
        abi.transport_drain_streams(self._handle)

    def stop_accepting(self) -> None:
        """Leaves new connections to other processes with the sockets; returns when it has."""
        abi.transport_stop_accepting(self._handle)

    def drain(self, seconds: float) -> None:
        """Accepts no more calls; the server ends when the open ones are answered, or cut off."""
        abi.transport_drain(self._handle, seconds)

    def stop(self) -> None:
        """Ends at once, and `fetch` with it."""
        abi.transport_stop(self._handle)


def _address_of(function: Any) -> int:
    address = ctypes.cast(function, ctypes.c_void_p).value
    if address is None:
        raise InternalError("a function of the compiled transport has no address")
    return address


def _descriptors(listeners: Sequence[socket.socket]) -> "ctypes.Array[ctypes.c_int32]":
    return (ctypes.c_int32 * len(listeners))(*(one.fileno() for one in listeners))


def _token_structs(
    credentials: Sequence[Credential] | None,
) -> "tuple[ctypes.Array[abi.Token], int]":
    """Tokens and their number; -1: calls need none."""
    listed = [
        abi.Token(
            (ctypes.c_uint8 * 32)(*one.digest),
            int(sum(ACCESS_BITS[scope] for scope in one.scopes)),
            one.name.encode(),
        )
        for one in credentials or ()
    ]
    count = -1 if credentials is None else len(listed)
    return (abi.Token * len(listed))(*listed), count
