"""A gRPC server as events and replies, in Python's values.

Compiled code owns the sockets, HTTP/2, TLS, admission and limits, in one thread without the GIL.
The caller's threads fetch events, many at once, and reply to calls by their numbers.
"""

import ctypes
import socket
from collections.abc import Iterable, Sequence

from serving.security.access import Credential
from serving.security.tls import TlsFiles
from serving.status import Status
from serving.transport.events import metadata_pair
from serving.transport.library import (
    CountersStruct,
    MethodStruct,
    SettingsStruct,
    TokenStruct,
    transport_library,
)
from serving.transport.limits import ACCESS_BITS, Limits, Method
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
        busy_poll_seconds: float = 0.0,
    ) -> None:
        """Starts the I/O thread; takes nonblocking listeners over, also on an error.

        `busy_poll_seconds` is how long a thread polls for calls before it sleeps.

        Raises:
            InputError: a library is missing, or the certificates cannot be used.
        """
        self._library = transport_library()
        listed = (MethodStruct * len(methods))(
            *(
                MethodStruct(m.path.encode(), m.is_stream, int(m.access), m.with_headers)
                for m in methods
            )
        )
        descriptors = (ctypes.c_int32 * len(listeners))(*(one.fileno() for one in listeners))
        settings = SettingsStruct(
            listeners=descriptors,
            listener_count=len(descriptors),
            methods=listed,
            method_count=len(methods),
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
        waiting, short = self._library.waiting, self._library.short
        # The strings of methods and settings must live as long as the server.
        self._kept = (listed, settings)
        self._handle = waiting.sharded_infer_transport_start(settings, error, _ERROR_BYTES)
        for one in listeners:
            one.detach() if self._handle else one.close()
        if not self._handle:
            raise InputError(error.value.decode(errors="replace"))
        self._respond = short.sharded_infer_transport_respond
        self._finish = short.sharded_infer_transport_finish
        self._fetch = waiting.sharded_infer_transport_fetch
        self.counters: CountersStruct = waiting.sharded_infer_transport_counters(
            self._handle
        ).contents

    @property
    def answering(self) -> tuple[int, int, int]:
        """Addresses of the functions that answer and end a call, and of their server argument."""
        respond = ctypes.cast(self._respond, ctypes.c_void_p).value
        finish = ctypes.cast(self._finish, ctypes.c_void_p).value
        if respond is None or finish is None:
            raise InternalError("a function of the compiled transport has no address")
        return respond, finish, self._handle

    @property
    def address(self) -> int:
        """Address of the compiled server."""
        address: int = self._handle
        return address

    def fetch(self, events: int, held: int, most: int, milliseconds: int) -> int:
        """Fills `events`, an address of `most` structs, whose first `held` are given back."""
        count: int = self._fetch(self._handle, events, held, most, milliseconds)
        return count

    def hold_replies(self) -> None:
        """Buffers the calling thread's replies until its `flush`, from now on."""
        self._library.short.sharded_infer_transport_hold()

    def flush(self) -> None:
        """Sends buffered replies. The system call takes longer than the replies."""
        self._library.waiting.sharded_infer_transport_flush(self._handle)

    def respond(self, call: int, message: bytes) -> None:
        """Answers a unary call."""
        self._respond(self._handle, call, message, len(message), 1)

    def send(self, call: int, message: bytes) -> None:
        """Sends a message of a stream."""
        self._respond(self._handle, call, message, len(message), 0)

    def finish(
        self, call: int, status: Status | None, trailers: Iterable[tuple[str, str | bytes]] = ()
    ) -> None:
        """Ends a call; None: OK, after the messages that were sent."""
        code, words = (0, b"") if status is None else (status.code.number, status.message.encode())
        pairs = b"".join(metadata_pair(name, value) for name, value in trailers)
        self._finish(self._handle, call, code, words, len(words), pairs, len(pairs))

    def set_tokens(self, credentials: Sequence[Credential] | None) -> None:
        """Replaces the tokens; None: calls need none.

        Raises InputError if OpenSSL, which hashes them, is missing.
        """
        listed = [
            TokenStruct(
                (ctypes.c_uint8 * 32)(*one.digest),
                int(sum(ACCESS_BITS[scope] for scope in one.scopes)),
                one.name.encode(),
            )
            for one in credentials or ()
        ]
        tokens = (TokenStruct * len(listed))(*listed)
        count = -1 if credentials is None else len(listed)
        if self._library.short.sharded_infer_transport_set_tokens(self._handle, tokens, count):
            raise InputError("tokens: OpenSSL 3 is not installed: libssl.so.3, libcrypto.so.3")

    def set_fixed_answer(self, method: int, message: bytes, answer: bytes) -> None:
        """Sets an open unary method's answer to this very message, which Python does not get."""
        self._library.short.sharded_infer_transport_set_fixed_answer(
            self._handle, method, message, len(message), answer, len(answer)
        )

    def set_backlog(self, seconds: float) -> None:
        """Refuses predict calls with less time than this before their messages are read."""
        self._library.short.sharded_infer_transport_set_backlog(self._handle, seconds)

    def set_urgent_lead(self, seconds: float) -> None:
        """Sets how far an unread call may go before others with its deadline."""
        self._library.short.sharded_infer_transport_set_urgent_lead(self._handle, seconds)

    def take_rate(self, client: str, now: float) -> float:
        """Takes one call of a client's rate, as `RateLimit.take` does."""
        seconds: float = self._library.short.sharded_infer_transport_take_rate(
            self._handle, client.encode("utf-8", "replace").replace(b"\0", b""), now
        )
        return seconds

    def drain(self, seconds: float) -> None:
        """Accepts no more calls; the server ends when the open ones are answered, or cut off."""
        self._library.short.sharded_infer_transport_drain(self._handle, seconds)

    def stop(self) -> None:
        """Ends at once, and `fetch` with it."""
        self._library.waiting.sharded_infer_transport_stop(self._handle)
