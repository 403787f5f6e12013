"""Lets gRPC calls in, or refuses them, before their handlers."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import grpc

from serving.access import Access
from serving.guard import Guard
from serving.inference import Refusal
from serving.refusals import RateLimitError
from serving.status import status_of
from sharded_infer.errors import ShardedInferError

_ELSEWHERE = Refusal(
    grpc.StatusCode.PERMISSION_DENIED,
    "this server answers RPCs that change it on its admin address alone",
)
_NOT_HERE = Refusal(
    grpc.StatusCode.PERMISSION_DENIED, "this is the admin address: it answers no predict calls"
)


class Door:
    """Puts what lets calls in before the handlers of RPCs."""

    def __init__(self, guard: Guard | None, *, admin_elsewhere: bool) -> None:
        """Keeps who is let in.

        Args:
            guard: decides; None: all are let in.
            admin_elsewhere: RPCs that change the server are answered on another port alone.
        """
        self._guard = guard
        self._admin_elsewhere = admin_elsewhere

    def handler(
        self, handler: "grpc.RpcMethodHandler[Any, Any]", access: Access, *, admin: bool
    ) -> "grpc.RpcMethodHandler[Any, Any]":
        """The handler behind the door; itself, where all are let in.

        Args:
            handler: answers an RPC.
            access: what it needs.
            admin: on the port for RPCs that change the server.
        """
        if access is Access.ADMIN and self._admin_elsewhere and not admin:
            return _answering(handler, lambda _: _ELSEWHERE)
        if access is Access.PREDICT and admin:
            return _answering(handler, lambda _: _NOT_HERE)
        guard = self._guard
        if guard is None or access is Access.OPEN:
            return handler
        return _answering(handler, lambda context: _refusal(guard, access, context))


def admission(
    guard: Guard, access: Access, metadata: Iterable[tuple[str, str | bytes]], peer: str
) -> Refusal | None:
    """Why a call is not let in; None: it is.

    Args:
        guard: decides.
        access: what the call needs.
        metadata: came with it.
        peer: its client's address; empty: not known.
    """
    authorization = None
    for pair in metadata:
        if pair[0] == "authorization" and isinstance(pair[1], str):
            authorization = pair[1]
    try:
        guard.admit(access, authorization, peer)
    except ShardedInferError as error:
        code, words = status_of(error)
        if access is Access.PREDICT:
            guard.count_refused(code.name)
        retry_ms = None
        if isinstance(error, RateLimitError):
            retry_ms = math.ceil(error.retry_seconds * 1e3)
        return Refusal(code, words, retry_ms)
    return None


def _refusal(guard: Guard, access: Access, context: grpc.ServicerContext) -> Refusal | None:
    # Behind the native transport's front every client has the same address, which is none.
    peer = context.peer()
    metadata = context.invocation_metadata()
    return admission(guard, access, metadata, "" if peer.startswith("unix:") else peer)


def _answering(
    handler: "grpc.RpcMethodHandler[Any, Any]",
    refusal_of: Callable[[grpc.ServicerContext], Refusal | None],
) -> "grpc.RpcMethodHandler[Any, Any]":
    """The handler behind a door."""
    kinds = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
    kind = next(kind for kind in kinds if getattr(handler, kind) is not None)
    behaviour = getattr(handler, kind)

    def answer(request: Any, context: grpc.ServicerContext, *more: Any) -> Any:
        refusal = refusal_of(context)
        if refusal is not None:
            context.set_trailing_metadata(refusal.metadata)
            context.abort(refusal.code, refusal.message)
        return behaviour(request, context, *more)

    keep_threads(behaviour, answer)
    admitted: grpc.RpcMethodHandler[Any, Any] = getattr(grpc, f"{kind}_rpc_method_handler")(
        answer, handler.request_deserializer, handler.response_serializer
    )
    return admitted


def keep_threads(behaviour: Any, answer: Any) -> None:
    """Has a behaviour that stands before another be called as that one asks to be."""
    # How behaviours ask gRPC for Python to be called: on threads of their own, or none.
    for attribute in ("experimental_non_blocking", "experimental_thread_pool"):
        if hasattr(behaviour, attribute):
            setattr(answer, attribute, getattr(behaviour, attribute))
