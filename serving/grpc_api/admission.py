"""Admits or refuses gRPC calls before their handlers run."""

from collections.abc import Callable, Iterable
from typing import Any

import grpc

from serving.grpc_api.status_codes import abort
from serving.security.access import Access
from serving.security.guard import Guard
from serving.status import Status, StatusCode, status_of
from sharded_infer.errors import ShardedInferError

_ELSEWHERE = Status(
    StatusCode.PERMISSION_DENIED,
    "this server answers RPCs that change it on its admin address alone",
)
_NOT_HERE = Status(
    StatusCode.PERMISSION_DENIED, "this is the admin address: it answers no predict calls"
)


class GrpcAdmission:
    """Wraps RPC handlers in an admission check."""

    def __init__(self, guard: Guard | None, *, admin_elsewhere: bool) -> None:
        """Stores the rules of admission.

        Args:
            guard: None admits every call.
            admin_elsewhere: RPCs that change the server are answered only on another port.
        """
        self._guard = guard
        self._admin_elsewhere = admin_elsewhere

    def handler(
        self, handler: "grpc.RpcMethodHandler[Any, Any]", access: Access, *, admin: bool
    ) -> "grpc.RpcMethodHandler[Any, Any]":
        """The handler with an admission check, or unchanged if every call is admitted.

        Args:
            admin: whether the handler serves the admin address.
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
) -> Status | None:
    """The refusal of a call, or None if it is admitted.

    Args:
        guard: decides and counts refused predict calls.
        peer: the client's address; empty if unknown.
    """
    authorization = None
    for pair in metadata:
        if pair[0] == "authorization" and isinstance(pair[1], str):
            authorization = pair[1]
    try:
        guard.admit(access, authorization, peer)
    except ShardedInferError as error:
        status = status_of(error)
        if access is Access.PREDICT:
            guard.count_refused(status.code.name)
        return status
    return None


def _refusal(guard: Guard, access: Access, context: grpc.ServicerContext) -> Status | None:
    # Calls that the native transport forwards all come from its Unix socket, not from a client.
    peer = context.peer()
    metadata = context.invocation_metadata()
    return admission(guard, access, metadata, "" if peer.startswith("unix:") else peer)


def _answering(
    handler: "grpc.RpcMethodHandler[Any, Any]",
    refusal_of: Callable[[grpc.ServicerContext], Status | None],
) -> "grpc.RpcMethodHandler[Any, Any]":
    """The handler, called only for calls that `refusal_of` does not refuse."""
    kinds = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
    kind = next(kind for kind in kinds if getattr(handler, kind) is not None)
    behaviour = getattr(handler, kind)

    def answer(request: Any, context: grpc.ServicerContext, *more: Any) -> Any:
        refusal = refusal_of(context)
        if refusal is not None:
            abort(context, refusal)
        return behaviour(request, context, *more)

    keep_threads(behaviour, answer)
    admitted: grpc.RpcMethodHandler[Any, Any] = getattr(grpc, f"{kind}_rpc_method_handler")(
        answer, handler.request_deserializer, handler.response_serializer
    )
    return admitted


def keep_threads(behaviour: Any, answer: Any) -> None:
    """Copies to a wrapper the threading attributes of the behaviour that it wraps."""
    # gRPC for Python reads these attributes to choose the threads that call a behaviour.
    for attribute in ("experimental_non_blocking", "experimental_thread_pool"):
        if hasattr(behaviour, attribute):
            setattr(answer, attribute, getattr(behaviour, attribute))
