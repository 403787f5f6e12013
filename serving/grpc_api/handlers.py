"""The server's RPCs as handlers.

Unary calls in progress are counted, so that a draining server knows when the last is answered.
Streams are not, because a health watch lasts until its client ends it.
"""

from collections.abc import Mapping
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from serving.grpc_api.status_codes import abort
from serving.inference.data_plane import CallsInProgress, DataPlane
from serving.protocol.predict_method import PredictMethod
from serving.security.guard import Guard
from serving.status import Status, StatusCode
from sharded_infer.errors import InternalError

INFERENCE_SERVICE = "inference.GRPCInferenceService"
INFER_METHOD = f"/{INFERENCE_SERVICE}/ModelInfer"
STREAM_METHOD = f"/{INFERENCE_SERVICE}/ModelStreamInfer"
PREDICTOR_SERVICE = "sharded_infer.v1.Predictor"
PREDICT_METHOD = f"/{PREDICTOR_SERVICE}/Predict"
# Predict calls, whose messages transports pass on as bytes.
PREDICT_METHODS = {
    INFER_METHOD: PredictMethod.MODEL_INFER,
    STREAM_METHOD: PredictMethod.MODEL_STREAM_INFER,
    PREDICT_METHOD: PredictMethod.PREDICT,
}
# Calls other than predict calls carry only a few names and numbers.
MOST_CONTROL_BYTES = 2**20


class HandlerTable:
    """Handlers registered by generated code, by service and method.

    It stands in for a `grpc.Server` in the `add_…_to_server` functions.
    """

    def __init__(
        self,
        data_plane: DataPlane,
        *,
        guard: Guard | None = None,
        admin_elsewhere: bool = False,
    ) -> None:
        """Starts empty.

        Args:
            data_plane: answers the predict calls and counts all unary calls.
            guard: None admits every call.
            admin_elsewhere: RPCs that change the server are answered only on another port.
        """
        self.guard = guard
        self.admin_elsewhere = admin_elsewhere
        self._data_plane = data_plane
        self.services: dict[str, dict[str, grpc.RpcMethodHandler[Any, Any]]] = {}

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """Ignores these handlers: `add_registered_method_handlers` receives the same ones."""

    def add_registered_method_handlers(
        self, service: str, handlers: Mapping[str, "grpc.RpcMethodHandler[Any, Any]"]
    ) -> None:
        """Stores the handlers of a service."""
        self.services[service] = {
            method: handler
            if handler.unary_unary is None
            else _counted(handler, self._data_plane.calls)
            for method, handler in handlers.items()
        }

    def add_predict_methods(self) -> None:
        """Adds the methods that the transport answers itself."""
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(_nowhere)
        for path in PREDICT_METHODS:
            _, service, method = path.split("/")
            self.services.setdefault(service, {})[method] = handler


def _counted(
    handler: "grpc.RpcMethodHandler[Any, Any]", calls: CallsInProgress
) -> "grpc.RpcMethodHandler[Any, Any]":
    # gRPC for Python would parse a message before the call is admitted. It would also answer an
    # unreadable one with INTERNAL, as if the server had failed.
    def answer(data: bytes, context: grpc.ServicerContext) -> Any:
        calls.add(1)
        # The call ends when its response is sent, which is after this function returns.
        if not context.add_callback(lambda: calls.add(-1)):
            calls.add(-1)
        if len(data) > MOST_CONTROL_BYTES:
            reason = f"the message has {len(data)} bytes, at most {MOST_CONTROL_BYTES} are allowed"
            abort(context, Status(StatusCode.RESOURCE_EXHAUSTED, reason))
        try:
            request = handler.request_deserializer(data)  # type: ignore[misc]
        except DecodeError as error:
            abort(
                context, Status(StatusCode.INVALID_ARGUMENT, f"the message is unreadable: {error}")
            )
        return handler.unary_unary(request, context)  # type: ignore[misc]

    return grpc.unary_unary_rpc_method_handler(
        answer, response_serializer=handler.response_serializer
    )


def _nowhere(_message: Any, _context: grpc.ServicerContext) -> Any:
    raise InternalError("a predict call reached a handler")
