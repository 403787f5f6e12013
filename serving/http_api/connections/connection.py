"""A client's connection, which handles one request at a time."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from time import time
from typing import cast

from kernels.wording import counted
from serving.http_api.connections.answer_bytes import CONTINUE, answer_bytes
from serving.http_api.connections.connection_context import PROBES, ConnectionContext
from serving.http_api.connections.connection_table import LATE, Drop, Stage
from serving.http_api.connections.request_head import RequestHead
from serving.http_api.connections.request_reader import RequestReader
from serving.http_api.exchange import HttpAnswer, HttpError, error_answer
from sharded_infer.errors import RequestTooLargeError, ShardedInferError

# Slices of one connection, before others have their turn.
_TURN_SLICES = 4
# Bytes read after an answer that did not need them. Closing a connection with unread bytes would
# reset it, and its client might lose the answer.
_DISCARDED_BYTES = 2**20


class HttpConnection(asyncio.BufferedProtocol):
    """One client's connection: a `Member` and a `Client`.

    `connecting` accepts it, with TLS if any.
    """

    connecting: asyncio.Task[None] | None = None
    _transport: asyncio.Transport | None = None
    _task: asyncio.Task[None] | None = None
    _told: Callable[[], None] | None = None
    # Pending until the body in progress is complete, or failed with the error.
    _waiter: asyncio.Future[None] | None = None
    _error: ShardedInferError | None = None
    # Largest size of the request's body if it is read, and its size in memory.
    _most_body: int | None = None
    _held = 0
    _discarded = 0
    _is_idle = _is_lost = _is_blocked = _is_paused = False
    # Further bytes are discarded; an ending connection also closes.
    _is_broken = _is_ending = False
    # Received while another request was in progress, or out of turn.
    _rest = b""

    def __init__(
        self, context: ConnectionContext, address: str, peer: str, *, only_probes: bool
    ) -> None:
        self.address = address
        self.peer = peer
        self.only_probes = only_probes
        self._context = context
        self._is_last = only_probes or not context.keeps_open
        self._view = memoryview(context.buffer)
        self._reader = RequestReader(context.limits.header_bytes)
        context.table.enter(self, context.loop.time())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Handles a new connection."""
        self._transport = cast(asyncio.Transport, transport)
        # Calls `pause_writing` for each answer that is not sent at once.
        self._transport.set_write_buffer_limits(1, 0)

    def connection_lost(self, exc: Exception | None) -> None:
        """Handles a lost connection, whichever side closed it."""
        self._is_lost, self._rest = True, b""
        self._context.table.leave(self)
        self._break(HttpError(499, "the client has gone"))
        self._reader.close()
        if self._told is not None:
            self._told()

    @property
    def unsent(self) -> int:
        """Bytes of an answer that its client has not read."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Buffer for received bytes."""
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        """Handles received bytes."""
        if self._is_broken or self._is_ending:
            self._discard(nbytes)
        elif self._rest or self._reader.is_complete:
            self._keep(self._rest + bytes(self._view[:nbytes]))
        else:
            self._advance(self._context.buffer, nbytes)

    def pause_writing(self) -> None:
        """Handles an answer that is not sent at once."""
        self._is_blocked = True

    def resume_writing(self) -> None:
        """Handles an answer that is sent."""
        self._is_blocked = False
        if self._is_ending:
            self._move(Stage.END)
        elif self._task is None and self._reader.is_complete:
            (self._end if self._is_last else self._next)()

    def late(self, stage: Stage) -> None:
        """Handles a stage's timeout."""
        if stage in LATE:
            self._context.drop(LATE[stage])
        if stage is Stage.BODY:
            seconds = self._context.limits.body_seconds
            self._break(HttpError(408, f"the body took more than {seconds:g} s"))
        elif stage in {Stage.HEAD, Stage.IDLE} and self._transport is not None:
            self._is_ending = True
            self._move(Stage.END)
            self._transport.close()
        else:
            self.abort()

    def abort(self) -> None:
        """Closes the connection at once."""
        self._is_ending = True
        self._move(None)
        if self._transport is not None:
            self._transport.abort()
        elif self.connecting is not None:
            self.connecting.cancel()

    def stop(self) -> None:
        """Closes the connection after the answer in progress."""
        self._is_last = True
        if self._task is None and not self._is_blocked:
            self.abort()

    def when_lost(self, told: Callable[[], None] | None) -> None:
        """Implements `Client.when_lost`."""
        self._told = told
        if told is not None and self._is_lost:
            told()

    async def read_body(self, most: int) -> bytes:
        """Implements `Client.read_body`."""
        reader = self._reader
        declared = 0 if reader.head is None else reader.head.body_bytes or 0
        if declared > most:
            raise RequestTooLargeError(f"the body is {declared} bytes, expected at most {most}")
        self._most_body = most
        self._take_body()
        if self._error is not None:
            raise self._error
        if not reader.is_complete:
            if reader.head is not None and reader.head.expects_continue and not reader.pieces:
                self._connected.write(CONTINUE)
            self._waiter = self._context.loop.create_future()
            self._move(Stage.BODY)
            try:
                await self._waiter
            finally:
                self._waiter = None
                self._move(None)
        body = b"".join(reader.pieces)
        reader.pieces.clear()
        return body

    def _advance(self, data: bytes | bytearray, end: int) -> None:
        reader, begin, was_begun = self._reader, 0, self._task is not None
        try:
            for _ in range(_TURN_SLICES):
                begin = reader.read(data, begin, end)
                if begin == end or reader.is_complete:
                    break
        except HttpError as error:
            self._refuse(error)
            return
        if was_begun:
            self._take_body()
        elif reader.head is not None:
            self._begin(reader.head)
        elif self._is_idle:
            self._is_idle = False
            self._move(Stage.HEAD)
        if begin < end:
            self._keep(bytes(memoryview(data)[begin:end]))
            if not reader.is_complete:
                self._context.call_later(self._go_on)
        elif self._is_paused and self._discarded <= _DISCARDED_BYTES:
            self._is_paused = False
            self._connected.resume_reading()

    def _go_on(self) -> None:
        if not (self._is_lost or self._is_broken or self._is_ending):
            rest, self._rest = self._rest, b""
            self._advance(rest, len(rest))

    def _keep(self, rest: bytes) -> None:
        self._rest, self._is_paused = rest, True
        self._connected.pause_reading()

    def _begin(self, head: RequestHead) -> None:
        self._is_idle = False
        self._move(None)
        if self.only_probes and head.request.path not in PROBES:
            busy = "too many connections: this one may only ask /live and /ready"
            self._reply(error_answer(503, busy, (("Retry-After", "1"),)))
        else:
            self._task = self._context.loop.create_task(self._answer(head))

    async def _answer(self, head: RequestHead) -> None:
        try:
            answer = await self._context.answer(head, self)
        finally:
            self._context.bodies.release(self._held)
            self._task, self._held = None, 0
        self._reply(answer)

    def _reply(self, answer: HttpAnswer) -> None:
        if self._is_lost or self._is_ending:
            return
        head = self._reader.head
        close = self._is_last or self._is_broken or not self._reader.is_complete
        close = close or head is None or not head.keep_alive
        is_head = head is not None and head.request.method == "HEAD"
        self._connected.write(answer_bytes(answer, is_head=is_head, close=close, now=time()))
        if close:
            self._end()
        elif self._is_blocked:
            self._move(Stage.READER)
        else:
            self._next()

    def _next(self) -> None:
        self._reader.next()
        self._error, self._most_body, self._discarded = None, None, 0
        self._is_idle = True
        self._move(Stage.IDLE)
        if self._is_paused:
            self._context.call_later(self._go_on)

    def _end(self) -> None:
        """Closes once the client has the answer."""
        self._is_ending = True
        self._move(Stage.READER if self._is_blocked else Stage.END)
        connected = self._connected
        if self._reader.is_complete and not self._rest:
            connected.close()
            return
        self._rest = b""
        # The client may be gone. TLS can only end both directions.
        with suppress(OSError, NotImplementedError):
            connected.write_eof()
        connected.resume_reading()

    def _refuse(self, error: HttpError) -> None:
        self._context.drop(Drop.MALFORMED)
        if self._task is None:
            self._is_broken = True
            self._reply(error_answer(error.status, str(error)))
        else:
            self._break(error)

    def _break(self, error: ShardedInferError) -> None:
        """Fails the body of the request in progress, and discards further bytes."""
        self._is_broken, self._error = True, self._error or error
        self._reader.pieces.clear()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(self._error)

    def _take_body(self) -> None:
        grown = self._reader.body_size - self._held
        if self._most_body is None:  # nobody asked for it
            self._reader.pieces.clear()
            self._discard(grown - self._discarded)
            return
        held, self._held = self._held, self._held + grown
        try:
            self._context.hold(held, self._held)
            if self._held > self._most_body:
                most = counted(self._most_body, "byte")
                raise RequestTooLargeError(f"the body is more than {most}")
        except ShardedInferError as error:
            self._break(error)
        else:
            if self._reader.is_complete and self._waiter is not None and not self._waiter.done():
                self._waiter.set_result(None)

    def _discard(self, size: int) -> None:
        self._discarded += size
        if self._discarded > _DISCARDED_BYTES and self._is_ending:
            self._connected.close()
        elif self._discarded > _DISCARDED_BYTES:
            self._keep(b"")

    def _move(self, stage: Stage | None) -> None:
        self._context.table.move(self, stage, self._context.loop.time())

    @property
    def _connected(self) -> asyncio.Transport:
        # Set, as every caller has received bytes.
        return cast(asyncio.Transport, self._transport)
