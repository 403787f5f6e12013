"""The server's RPCs as handlers, independent of the transport.

Unary calls in progress are counted, so that a draining server knows when the last is answered.
Streams are not counted, because a health watch lasts until its client ends it.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from serving.grpc_api.admission import GrpcAdmission, keep_threads
from serving.grpc_api.status_codes import abort
from serving.inference.data_plane import CallsInProgress, DataPlane
from serving.inference.predict_call import PredictCall
from serving.protocol.codec import MESSAGE_CODECS
from serving.protocol.predict_method import PredictMethod
from serving.scheduler.arrivals import Arrivals
from serving.security.access import access_of
from serving.security.guard import Guard
from serving.status import Status, StatusCode

INFERENCE_SERVICE = "inference.GRPCInferenceService"
INFER_METHOD = f"/{INFERENCE_SERVICE}/ModelInfer"
PREDICTOR_SERVICE = "sharded_infer.v1.Predictor"
PREDICT_METHOD = f"/{PREDICTOR_SERVICE}/Predict"
# Predict calls, whose messages transports pass on as bytes.
PREDICT_METHODS = {
    INFER_METHOD: PredictMethod.MODEL_INFER,
    PREDICT_METHOD: PredictMethod.PREDICT,
}
# Calls other than predict calls carry only a few names and numbers.
MOST_CONTROL_BYTES = 2**20
StreamAnswers = Callable[[Iterator[bytes], grpc.ServicerContext], Iterator[bytes]]


class HandlerTable:
    """Collects the handlers that generated code registers, by service and method.

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
        self._admission = GrpcAdmission(guard, admin_elsewhere=admin_elsewhere)
        self._data_plane = data_plane
        # Answers predict calls; `set_infer` fills it.
        self.predicting: list[InferBehaviour] = []
        self.services: dict[str, dict[str, grpc.RpcMethodHandler[Any, Any]]] = {}

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """Ignores these handlers: `add_registered_method_handlers` receives the same ones."""

    def add_registered_method_handlers(
        self, service: str, handlers: Mapping[str, "grpc.RpcMethodHandler[Any, Any]"]
    ) -> None:
        """Stores the handlers of a service."""
        self.services[service] = {
            method: _settled(handler, self._data_plane.dispatcher.arrivals)
            if handler.unary_unary is None
            else _counted(handler, self._data_plane.calls)
            for method, handler in handlers.items()
        }

    def set_infer(self) -> None:
        """Adds handlers for predict calls that read bytes, without protobuf objects."""
        for path, predict_method in PREDICT_METHODS.items():
            behaviour = InferBehaviour(self._data_plane, predict_method)
            self.predicting.append(behaviour)
            _, service, method = path.split("/")
            handler: grpc.RpcMethodHandler[bytes, bytes]
            handler = grpc.stream_unary_rpc_method_handler(behaviour)
            self.services.setdefault(service, {})[method] = handler

    def set_stream(self, behaviour: StreamAnswers) -> None:
        """Adds the handler of ModelStreamInfer, which receives serialized messages."""
        handler: grpc.RpcMethodHandler[bytes, bytes]
        handler = grpc.stream_stream_rpc_method_handler(behaviour)
        self.services[INFERENCE_SERVICE]["ModelStreamInfer"] = handler

    def register_on(self, server: grpc.Server, *, admin: bool = False) -> None:
        """Registers all handlers on a server.

        Args:
            admin: whether it serves the admin address, which refuses predict calls.
        """
        for service, all_handlers in self.services.items():
            handlers = {
                method: self._admission.handler(
                    handler, access_of(f"/{service}/{method}"), admin=admin
                )
                for method, handler in all_handlers.items()
            }
            generic = grpc.method_handlers_generic_handler(service, handlers)
            server.add_generic_rpc_handlers((generic,))
            server.add_registered_method_handlers(service, handlers)


def _settled(
    handler: "grpc.RpcMethodHandler[Any, Any]", arrivals: Arrivals
) -> "grpc.RpcMethodHandler[Any, Any]":
    # A stream stays open, so it must not count as a predict call in transit to the queue.
    make = grpc.stream_stream_rpc_method_handler
    behaviour = handler.stream_stream
    if handler.unary_stream is not None:
        make, behaviour = grpc.unary_stream_rpc_method_handler, handler.unary_stream
    if behaviour is None:
        return handler

    def answer(*arguments: Any, **named: Any) -> Any:
        arrivals.own_queued()
        return behaviour(*arguments, **named)

    keep_threads(behaviour, answer)
    return make(answer, handler.request_deserializer, handler.response_serializer)


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


class InferBehaviour:
    """Answers the predict calls of one method, each on a thread that waits for its response.

    It is registered as taking a stream of requests. On the wire a stream of one request is the same
    as one request, and a call can be refused without receiving its message.
    """

    def __init__(self, data_plane: DataPlane, method: PredictMethod) -> None:
        self._method = method
        self._codec = MESSAGE_CODECS[method]
        self._data_plane = data_plane
        self._decided = threading.local()
        # gRPC for Python calls this behaviour on these threads; None means the server's.
        self.experimental_thread_pool: ThreadPoolExecutor | None = None

    def refuse(self, refusal: Status, call: Callable[[], Any]) -> Any:
        """Refuses one call without receiving its message.

        Args:
            refusal: the status to send to the client.
            call: calls this behaviour on the current thread.
        """
        self._decided.refusal = refusal
        try:
            return call()
        finally:
            self._decided.refusal = None

    def __call__(self, messages: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        """Answers one call."""
        refusal: Status | None = getattr(self._decided, "refusal", None)
        if refusal is not None:
            abort(context, refusal)
        message = next(messages, None)
        if message is None:
            abort(context, Status(StatusCode.INVALID_ARGUMENT, "the call holds no message"))
        open_calls: list[PredictCall] = []

        def ended() -> None:
            self._data_plane.calls.add_predict(-1)
            for call in open_calls:
                # The call is already answered, unless its client has disconnected.
                if not call.done:
                    self._data_plane.cancel(call)

        self._data_plane.calls.add_predict(1)
        if not context.add_callback(ended):
            ended()
        metadata = context.invocation_metadata() if self._data_plane.traces else ()
        outcome = self._data_plane.predict(
            self._codec,
            message,
            method=self._method,
            time_remaining=context.time_remaining(),
            metadata=metadata,
            watch=open_calls.append,
        )
        if isinstance(outcome, Status):
            abort(context, outcome)
        return outcome
