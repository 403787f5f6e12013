"""The server's RPCs as handlers, whatever transport carries them.

Unary calls are counted while they last, so that a draining server knows when the last is answered;
streams are not: a health watch lasts as long as its client likes.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from serving.admission import Door, keep_threads
from serving.arrivals import Arrivals
from serving.guard import Guard
from serving.inference import Inference, Refusal
from serving.job import Job
from serving.predict_method import PredictMethod
from serving.rpc_access import access_of

INFERENCE_SERVICE = "inference.GRPCInferenceService"
INFER_METHOD = f"/{INFERENCE_SERVICE}/ModelInfer"
PREDICTOR_SERVICE = "sharded_infer.v1.Predictor"
PREDICT_METHOD = f"/{PREDICTOR_SERVICE}/Predict"
# The predict calls, which transports carry as bytes.
PREDICT_METHODS = {
    INFER_METHOD: PredictMethod.MODEL_INFER,
    PREDICT_METHOD: PredictMethod.PREDICT,
}
# A call that is no predict call has a few names and numbers.
MOST_CONTROL_BYTES = 2**20
StreamAnswers = Callable[[Iterator[bytes], grpc.ServicerContext], Iterator[bytes]]


class CallCount:
    """How many calls are being answered."""

    def __init__(self, changed: Callable[[int], None]) -> None:
        """Begins at none.

        Args:
            changed: told 1 and -1 for predict calls; for a metric.
        """
        self._changed = changed
        self._lock = threading.Lock()
        self._count = 0

    @property
    def in_progress(self) -> int:
        """Calls that have a thread, or whose response is not sent yet."""
        with self._lock:
            return self._count

    def add(self, change: int) -> None:
        """One more (1) or one less (-1)."""
        with self._lock:
            self._count += change

    def add_predict(self, change: int) -> None:
        """As `add`, for a predict call."""
        self.add(change)
        self._changed(change)


class HandlerTable:
    """Collects what generated code registers, by service and method.

    It stands in for a `grpc.Server` in the `add_…_to_server` functions.
    """

    def __init__(
        self,
        calls: CallCount,
        arrivals: Arrivals,
        *,
        guard: Guard | None = None,
        admin_elsewhere: bool = False,
    ) -> None:
        """Begins empty.

        Args:
            calls: counts the unary ones.
            arrivals: told that streams are no predict calls.
            guard: lets calls in; None: all are.
            admin_elsewhere: RPCs that change the server are answered on another port alone.
        """
        self.guard = guard
        self._door = Door(guard, admin_elsewhere=admin_elsewhere)
        self._arrivals = arrivals
        # What answers predict calls, once that is set.
        self.predicting: list[InferBehaviour] = []
        self.services: dict[str, dict[str, grpc.RpcMethodHandler[Any, Any]]] = {}
        self._calls = calls

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """Takes nothing: the registered handlers below are the same ones."""

    def add_registered_method_handlers(
        self, service: str, handlers: Mapping[str, "grpc.RpcMethodHandler[Any, Any]"]
    ) -> None:
        """Takes a service's handlers."""
        self.services[service] = {
            method: _settled(handler, self._arrivals)
            if handler.unary_unary is None
            else _counted(handler, self._calls)
            for method, handler in handlers.items()
        }

    def set_infer(self, inference: Inference) -> None:
        """Answers predict calls of all forms from their bytes, without protobuf objects."""
        for path, predict_method in PREDICT_METHODS.items():
            behaviour = InferBehaviour(inference, self._calls, predict_method)
            self.predicting.append(behaviour)
            _, service, method = path.split("/")
            handler: grpc.RpcMethodHandler[bytes, bytes]
            handler = grpc.stream_unary_rpc_method_handler(behaviour)
            self.services.setdefault(service, {})[method] = handler

    def set_stream(self, behaviour: StreamAnswers) -> None:
        """Answers ModelStreamInfer from the bytes of its messages.

        Args:
            behaviour: called with a stream's messages and context.
        """
        handler: grpc.RpcMethodHandler[bytes, bytes]
        handler = grpc.stream_stream_rpc_method_handler(behaviour)
        self.services[INFERENCE_SERVICE]["ModelStreamInfer"] = handler

    def register_on(self, server: grpc.Server, *, admin: bool = False) -> None:
        """Gives all to a server.

        Args:
            server: takes them.
            admin: it is the one on the port for RPCs that change the server: no predict calls.
        """
        for service, all_handlers in self.services.items():
            handlers = {
                method: self._door.handler(handler, access_of(f"/{service}/{method}"), admin=admin)
                for method, handler in all_handlers.items()
            }
            generic = grpc.method_handlers_generic_handler(service, handlers)
            server.add_generic_rpc_handlers((generic,))
            server.add_registered_method_handlers(service, handlers)


def _settled(
    handler: "grpc.RpcMethodHandler[Any, Any]", arrivals: Arrivals
) -> "grpc.RpcMethodHandler[Any, Any]":
    # A stream lasts: it must not look like a predict call that is on its way.
    make = grpc.stream_stream_rpc_method_handler
    behaviour = handler.stream_stream
    if handler.unary_stream is not None:
        make, behaviour = grpc.unary_stream_rpc_method_handler, handler.unary_stream
    if behaviour is None:
        return handler

    def answer(*arguments: Any, **named: Any) -> Any:
        arrivals.settle_own()
        return behaviour(*arguments, **named)

    keep_threads(behaviour, answer)
    return make(answer, handler.request_deserializer, handler.response_serializer)


def _counted(
    handler: "grpc.RpcMethodHandler[Any, Any]", calls: CallCount
) -> "grpc.RpcMethodHandler[Any, Any]":
    # gRPC for Python would read a message before it is known who may send it, and say INTERNAL of
    # one that is unreadable, as if the server had failed.
    def answer(data: bytes, context: grpc.ServicerContext) -> Any:
        calls.add(1)
        # Over when its response is sent, which is after this returns.
        if not context.add_callback(lambda: calls.add(-1)):
            calls.add(-1)
        if len(data) > MOST_CONTROL_BYTES:
            reason = f"the message has {len(data)} bytes, at most {MOST_CONTROL_BYTES} are allowed"
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)
        try:
            request = handler.request_deserializer(data)  # type: ignore[misc]
        except DecodeError as error:
            reason = f"the message is unreadable: {error}"
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, reason)
        return handler.unary_unary(request, context)  # type: ignore[misc]

    return grpc.unary_unary_rpc_method_handler(
        answer, response_serializer=handler.response_serializer
    )


class InferBehaviour:
    """Predict calls by one method, each on a thread that waits for the answer.

    To gRPC for Python it takes a stream of requests: on the wire that is the same as one request,
    and a call can be refused without receiving its message.
    """

    def __init__(self, inference: Inference, calls: CallCount, method: PredictMethod) -> None:
        """Keeps what answers.

        Args:
            inference: answers the calls.
            calls: counts them.
            method: by which they come.
        """
        self._method = method
        self._inference = inference
        self._calls = calls
        self._decided = threading.local()
        # Where gRPC for Python looks for the threads to call this on; None: the server's.
        self.experimental_thread_pool: ThreadPoolExecutor | None = None

    def refuse(self, refusal: Refusal, call: Callable[[], Any]) -> Any:
        """Has one call refused, whose message is not received.

        Args:
            refusal: what its client is told.
            call: calls this on the same thread.
        """
        self._decided.refusal = refusal
        try:
            return call()
        finally:
            self._decided.refusal = None

    def __call__(self, messages: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        """Answers a call."""
        refusal: Refusal | None = getattr(self._decided, "refusal", None)
        if refusal is not None:
            context.abort(refusal.code, refusal.message)
        message = next(messages, None)
        if message is None:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call holds no message")
        jobs: list[Job] = []

        def ended() -> None:
            self._calls.add_predict(-1)
            for job in jobs:
                # Answered already, unless its client has gone.
                self._inference.dispatcher.cancel(job)

        self._calls.add_predict(1)
        if not context.add_callback(ended):
            ended()
        metadata = context.invocation_metadata() if self._inference.traces else ()
        outcome = self._inference.answer(
            message, context.time_remaining(), jobs.append, method=self._method, metadata=metadata
        )
        if isinstance(outcome, Refusal):
            context.set_trailing_metadata(outcome.metadata)
            context.abort(outcome.code, outcome.message)
        return outcome
