"""RPCs except predict calls, over the native transport: few threads, none for an open stream."""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from google.protobuf.message import DecodeError

from serving.abi.transport import EventKind
from serving.grpc_api.compiled.call_context import AbortedError, CallContext
from serving.grpc_api.handlers import HandlerTable
from serving.status import Status, StatusCode, status_of
from serving.transport.events import Event
from serving.transport.http2_server import Http2Server

_THREADS = 8
# A `grpc.RpcMethodHandler`, whose functions depend on its kind.
_Handler = Any


class _OpenCall:
    """A call with its handler's context, and its remaining steps in order."""

    def __init__(self, handler: _Handler, context: CallContext) -> None:
        self.handler = handler
        self.context = context
        self.steps: deque[Callable[[], None]] = deque()
        self.lock = threading.Lock()
        self.busy = False


class NativeRpcs:
    """Runs handlers for the events of their calls."""

    def __init__(self, server: Http2Server, methods: list[str], handlers: HandlerTable) -> None:
        """Prepares the threads; `methods` are the server's, /service/Method, in its order."""
        self._server = server
        self._handlers = [_handler_of(path, handlers) for path in methods]
        self._open: dict[int, _OpenCall] = {}
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="rpc")

    def take(self, event: Event, message: bytes) -> None:
        """Handles an event; its handler runs on another thread."""
        if event.kind in (EventKind.CALL, EventKind.OPENED):
            finish = partial(self._server.finish, event.call)
            self._open[event.call] = _OpenCall(
                self._handlers[event.method], CallContext(event, finish)
            )
        call = self._open.get(event.call)
        if call is None:
            return
        if event.kind is EventKind.CALL:
            self._do(call, partial(self._answer, event.call, call, message))
        elif event.kind is EventKind.MESSAGE:
            self._do(call, partial(self._answer_stream, event.call, call, message))
        elif event.kind is EventKind.HALF_CLOSED and call.handler.unary_stream is None:
            self._do(call, partial(self._finish, event.call, call, None))
        elif event.kind is EventKind.CANCELLED:
            self._open.pop(event.call, None)
            # Callbacks may wait for locks that handlers hold.
            self._pool.submit(call.context.end)

    def end_streams(self, status: Status) -> None:
        """Ends the open streams with a status."""
        for number, call in list(self._open.items()):
            if call.handler.unary_unary is None:
                self._server.finish(number, status)
                self._open.pop(number, None)
                self._pool.submit(call.context.end)

    def stop(self) -> None:
        """Ends the threads after their present steps."""
        for call in list(self._open.values()):
            call.context.end()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _do(self, call: _OpenCall, step: Callable[[], None]) -> None:
        with call.lock:
            call.steps.append(step)
            if call.busy:
                return
            call.busy = True
        self._pool.submit(self._run, call)

    def _run(self, call: _OpenCall) -> None:
        while True:
            with call.lock:
                if not call.steps:
                    call.busy = False
                    return
                step = call.steps.popleft()
            step()

    def _answer(self, number: int, call: _OpenCall, message: bytes) -> None:
        handler, context = call.handler, call.context
        try:
            # Unary handlers read their own messages (`handlers.HandlerTable`).
            answer = handler.unary_unary(message, context)
            status = context.status()
            if status is None:
                self._server.respond(number, handler.response_serializer(answer))
                self._close(number, call)
            else:
                self._finish(number, call, status)
        except Exception as error:
            self._finish(number, call, _status_of(error, context))

    def _answer_stream(self, number: int, call: _OpenCall, message: bytes) -> None:
        handler, context = call.handler, call.context
        try:
            request = handler.request_deserializer(message)
            if handler.unary_stream is not None:
                # Such a handler calls back with each answer, as long as the call is open.
                handler.unary_stream(request, context, partial(self._send, number, call))
                return
            for answer in handler.stream_stream(iter((request,)), context):
                self._send(number, call, answer)
        except Exception as error:
            self._finish(number, call, _status_of(error, context))

    def _send(self, number: int, call: _OpenCall, answer: Any) -> None:
        if answer is None:
            self._finish(number, call, None)
        else:
            self._server.send(number, call.handler.response_serializer(answer))

    def _finish(self, number: int, call: _OpenCall, status: Status | None) -> None:
        self._server.finish(number, status, call.context.trailers)
        self._close(number, call)

    def _close(self, number: int, call: _OpenCall) -> None:
        self._open.pop(number, None)
        call.context.end()


def _handler_of(path: str, handlers: HandlerTable) -> _Handler:
    _, service, method = path.split("/")
    return handlers.services[service][method]


def _status_of(error: Exception, context: CallContext) -> Status:
    if isinstance(error, AbortedError):
        return context.status() or Status(StatusCode.UNKNOWN, "")
    if isinstance(error, DecodeError):
        return Status(StatusCode.INVALID_ARGUMENT, f"the message is unreadable: {error}")
    return status_of(error)
