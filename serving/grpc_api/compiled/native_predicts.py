"""Predict calls of the native transport that compiled code has not taken."""

from serving.abi.transport import EventKind
from serving.grpc_api.status_codes import trailing_metadata
from serving.grpc_api.stream_messages import stream_error
from serving.inference.data_plane import DataPlane
from serving.inference.unusual_calls import Arrival
from serving.protocol.predict_method import PredictMethod
from serving.protocol.predict_request import SentMessage
from serving.status import Status
from serving.transport.events import Event
from serving.transport.http2_server import Http2Server


class NativePredicts:
    """Submits predict calls of one server. Thread-safe."""

    def __init__(self, server: Http2Server, data_plane: DataPlane, most_calls: int) -> None:
        """Refuses messages of streams while `most_calls` are in progress in the process."""
        self._server, self._data_plane, self._most_calls = server, data_plane, most_calls

    def take(self, event: Event, message: bytes, method: PredictMethod) -> None:
        """Queues a call, or a message of a stream, that is not compressed."""
        if event.kind is EventKind.CANCELLED:
            return
        is_message = event.kind is EventKind.MESSAGE
        if is_message and self._data_plane.calls.in_progress >= self._most_calls:
            refusal: Status | None = self._data_plane.refuse_unread(self._most_calls)
        else:
            arrival = Arrival(
                method,
                event.call,
                event.seconds_left,
                event.metadata,
                event.is_drawn,
                event.place,
            )
            refusal = self._data_plane.submit(SentMessage(message, method.format), arrival)
        if refusal is None:
            return
        if is_message:
            error = stream_error(refusal.message, message)
            self._server.refuse_message(event.call, error, refusal)
        else:
            self._server.finish(event.call, refusal, trailing_metadata(refusal))
