"""Unary gRPC calls to several servers at once, in Python's values.

Compiled code (`native/client/`) owns the sockets, HTTP/2, TLS and deadlines. It has no
thread: the calling thread writes the calls, does its own work, and polls the sockets, without the
GIL, when it waits for the answers.
"""

import ctypes
import weakref
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kernels.native_library import address_of
from serving.abi import client as abi
from serving.status import Status, StatusCode
from serving.transport.client_settings import ClientLimits, ClientTls, Endpoint, endpoint_struct
from serving.transport.library import check_libraries
from sharded_infer.errors import InputError, InternalError

Message = bytes | bytearray | memoryview | np.ndarray
_ERROR_BYTES = 512
_FOREVER = 1e9
_MOST_WORDS = 4096  # of an error
# Creating a type takes longer than all else, so there is one for each power of two.
_MEMORY = [ctypes.c_ubyte * (1 << bits) for bits in range(33)]
_EMPTY = memoryview(b"")
_CODES = {code.number: code for code in StatusCode}


class _Lent(weakref.ref[ctypes.Array[ctypes.c_ubyte]]):
    """Memory of an answer, until no view of it is left."""

    __slots__ = ("address",)
    address: int


class OutgoingCall(NamedTuple):
    """A call to be made; endpoint and path are positions among the client's.

    Attributes:
        message: serialized; it may not change until the call has ended.
        timeout: seconds; finite.
        may_repeat: the call is sent again if its connection is lost, and may be processed twice.
        traceparent: of W3C's Trace Context; empty: none.
    """

    endpoint: int
    message: Message
    timeout: float
    path: int = 0
    may_repeat: bool = True
    traceparent: bytes = b""


class Answer(NamedTuple):
    """Result of a call; no status means OK, and any other an empty message.

    The message's memory is reused when no view of it is left.
    """

    status: Status | None
    message: memoryview


class Http2Client:
    """Calls several servers at once. One thread at a time uses it; connections stay open.

    The calls from a `start` to the next `finish` or `clear` are a round, and numbered in it from 0.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        paths: Sequence[str],
        limits: ClientLimits,
        *,
        tls: ClientTls | None = None,
        token: str | None = None,
        user_agent: str = "sharded-infer",
    ) -> None:
        """Connects nowhere yet; paths of methods are such as /package.Service/Method.

        Raises:
            InputError: a library is missing, an address or a file cannot be used.
        """
        check_libraries()
        listed = (abi.EndpointSettings * len(endpoints))(*map(endpoint_struct, endpoints))
        named = (ctypes.c_char_p * len(paths))(*(path.encode() for path in paths))
        settings = abi.Settings(
            endpoints=ctypes.addressof(listed),
            endpoint_count=len(listed),
            paths=ctypes.addressof(named),
            path_count=len(named),
            user_agent=user_agent.encode(),
            authorization=None if token is None else f"Bearer {token}".encode(),
            ca=None if tls is None else bytes(tls.ca),
            certificate=None if tls is None or tls.certificate is None else bytes(tls.certificate),
            key=None if tls is None or tls.key is None else bytes(tls.key),
            max_answer_bytes=limits.answer_bytes,
            max_header_bytes=limits.header_bytes,
            connect_seconds=limits.connect_seconds,
            keepalive_seconds=limits.keepalive_seconds,
            keepalive_timeout_seconds=limits.keepalive_timeout_seconds,
            least_backoff_seconds=limits.least_backoff_seconds,
            most_backoff_seconds=limits.most_backoff_seconds,
        )
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        # The strings of the settings must live as long as the client.
        self._kept = (listed, named, settings)
        self._handle: int | None = abi.client_make(settings, error, _ERROR_BYTES)
        if not self._handle:
            raise InputError(error.value.decode(errors="replace"))
        self._endpoint_count, self._path_count = len(listed), len(named)
        self._started = 0
        self._outgoing = (abi.Outgoing * 0)()
        self._numbers = (ctypes.c_int32 * 64)()
        self._ended = (abi.Ended * 0)()
        self._messages: list[np.ndarray] = []
        self._answers: dict[int, Answer] = {}
        self._lent: dict[int, _Lent] = {}
        self._returned: list[_Lent] = []

    def __enter__(self) -> "Http2Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, calls: Sequence[OutgoingCall]) -> range:
        """Adds calls to the round, writes without blocking, and returns the calls' numbers.

        Raises BufferError if a message is not contiguous.
        """
        self._take_back()
        if len(calls) > len(self._outgoing):
            self._outgoing = (abi.Outgoing * len(calls))()
        for to, call in zip(self._outgoing, calls, strict=False):
            if not (
                0 <= call.endpoint < self._endpoint_count and 0 <= call.path < self._path_count
            ):
                raise InternalError(
                    f"a call to endpoint {call.endpoint} of {self._endpoint_count}, path "
                    f"{call.path} of {self._path_count}"
                )
            message = np.frombuffer(call.message, np.uint8)
            self._messages.append(message)
            # The other way takes microseconds, and accepts read-only arrays.
            is_ours = message.flags.writeable
            to.message = address_of(message) if is_ours else message.ctypes.data
            to.bytes = message.nbytes
            to.traceparent, to.timeout = call.traceparent or None, call.timeout
            to.endpoint, to.path, to.may_repeat = call.endpoint, call.path, call.may_repeat
        abi.client_start(self._client, self._outgoing, len(calls))
        first = self._started
        self._started += len(calls)
        return range(first, self._started)

    def wait(self, seconds: float) -> list[int]:
        """Waits until a call ends or time is over; returns ended calls not returned before."""
        return self._wait(seconds, False)

    def result(self, number: int) -> Answer:
        """Answer of an ended call."""
        answer = self._answers.get(number)
        if answer is None:
            (answer,) = self._take(self._checked(number), 1)
            self._answers[number] = answer
        return answer

    def cancel(self, number: int) -> None:
        """Cancels a call, which `wait` will not return."""
        abi.client_cancel(self._client, self._checked(number))

    def finish(self) -> list[Answer]:
        """Waits until all calls have ended; returns their answers and ends the round."""
        self._wait(_FOREVER, True)
        if self._answers:
            answers = [self.result(number) for number in range(self._started)]
        else:
            answers = self._take(0, self._started)
        self.clear()
        return answers

    def clear(self) -> None:
        """Ends the round; unfinished calls are cancelled."""
        abi.client_clear(self._client)
        self._started = 0
        self._messages.clear()
        self._answers.clear()

    def close(self) -> None:
        """Ends all connections."""
        if self._handle:
            self._take_back()
            abi.client_destroy(self._client)
            # Viewed memory is never freed.
            self._handle = None

    @property
    def _client(self) -> int:
        if self._handle is None:
            raise InternalError("the client is closed")
        return self._handle

    def _wait(self, seconds: float, all_of_them: bool) -> list[int]:
        most = len(self._numbers)
        if self._started > most:
            most = 2 * self._started
            self._numbers = (ctypes.c_int32 * most)()
        count = abi.client_wait(self._client, seconds, all_of_them, self._numbers, most)
        return self._numbers[:count]

    def _take(self, first: int, count: int) -> list[Answer]:
        if count > len(self._ended):
            self._ended = (abi.Ended * count)()
        abi.client_results(self._client, first, count, self._ended)
        return [self._answer(at) for at in range(count)]

    def _answer(self, at: int) -> Answer:
        ended = self._ended[at]
        code = ended.code
        if not code:
            return Answer(None, self._view(ended.message, ended.bytes))
        if code < 0:
            raise InternalError("the answer of a call that has not ended")
        words = ctypes.string_at(ended.words, ended.words_bytes).decode(errors="replace")
        # They reach logs and clients.
        shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in words)
        return Answer(Status(_CODES[code], shown[:_MOST_WORDS]), _EMPTY)

    def _checked(self, number: int) -> int:
        if not 0 <= number < self._started:
            raise InternalError(f"call {number} of a round of {self._started}")
        return number

    def _view(self, address: int, size: int) -> memoryview:
        memory = _MEMORY[size.bit_length()].from_address(address)
        lent = _Lent(memory, self._returned.append)
        lent.address = address
        self._lent[address] = lent
        return memoryview(memory).cast("B")[:size].toreadonly()

    def _take_back(self) -> None:
        # Views may be dropped by any thread.
        while self._returned:
            address = self._returned.pop().address
            del self._lent[address]
            abi.client_give_back(self._client, address)
