"""Predict calls of the native transport that need Python."""

from functools import partial

from serving.abi.calls import Sender
from serving.abi.transport import EventKind
from serving.grpc_api.status_codes import trailing_metadata
from serving.inference.data_plane import Arrival, DataPlane
from serving.protocol.codec import MESSAGE_CODECS
from serving.protocol.infer_answer import Answer
from serving.protocol.predict_method import PredictMethod
from serving.status import Status
from serving.transport.events import Event
from serving.transport.http2_server import Http2Server
from sharded_infer.errors import InternalError


class NativePredicts:
    """Submits predict calls of one server. Thread-safe."""

    def __init__(self, server: Http2Server, data_plane: DataPlane) -> None:
        self._server, self._data_plane = server, data_plane

    def take(self, event: Event, message: bytes, method: PredictMethod) -> None:
        """Queues a call by its uncompressed message, or cancels it."""
        if event.kind is EventKind.CANCELLED:
            self._data_plane.cancel(event.call, Sender.GRPC)
            return
        arrival = Arrival(
            method, event.seconds_left, event.metadata, event.is_drawn, number=event.call
        )
        refuse = partial(self._refuse, event.call)
        self._data_plane.submit(MESSAGE_CODECS[method], message, refuse, arrival)

    def _refuse(self, number: int, outcome: Answer | Status) -> None:
        if not isinstance(outcome, Status):
            raise InternalError("compiled code sends the answers of its calls")
        self._server.finish(number, outcome, trailing_metadata(outcome))
