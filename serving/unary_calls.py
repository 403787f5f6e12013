"""Unary calls as they come in: counted while they last, and refused if they cannot be read."""

import threading
from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError


class UnaryCalls(grpc.ServerInterceptor):
    """Counts unary calls, and answers bytes that are no message of their RPC with INVALID_ARGUMENT.

    gRPC for Python by itself says INTERNAL, as if the server had failed. RPCs that stream are left
    as they are, and are not counted: a health watch lasts as long as its client likes.
    """

    def __init__(self) -> None:
        """Begins without calls or handlers; each handler is wrapped once."""
        self._handlers: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._count = 0

    @property
    def in_progress(self) -> int:
        """Calls that have a thread, or whose response is not sent yet."""
        with self._lock:
            return self._count

    def intercept_service(
        self, continuation: Callable[[Any], Any], handler_call_details: Any
    ) -> Any:
        """The RPC's handler, wrapped."""
        method = handler_call_details.method
        handler = self._handlers.get(method)
        if handler is None:
            handler = continuation(handler_call_details)
            # Only RPCs that exist are kept: their number has a bound.
            if handler is not None:
                handler = self._handlers[method] = self._wrap(handler)
        return handler

    def _add(self, change: int) -> None:
        with self._lock:
            self._count += change

    def _wrap(self, handler: Any) -> Any:
        if handler.unary_unary is None:
            return handler

        def read(data: bytes) -> Any:
            try:
                return handler.request_deserializer(data)
            except DecodeError as error:
                return error

        def answer(request: Any, context: grpc.ServicerContext) -> Any:
            self._add(1)
            # Over when its response is sent, which is after this returns.
            if not context.add_callback(lambda: self._add(-1)):
                self._add(-1)
            if isinstance(request, DecodeError):
                reason = f"the message is unreadable: {request}"
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, reason)
            return handler.unary_unary(request, context)

        return grpc.unary_unary_rpc_method_handler(
            answer, request_deserializer=read, response_serializer=handler.response_serializer
        )
