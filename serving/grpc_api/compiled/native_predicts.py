"""Predict calls of the native transport that compiled code has not taken."""

from functools import partial

from serving.abi.transport import EventKind
from serving.grpc_api.status_codes import trailing_metadata
from serving.grpc_api.stream_messages import stream_error
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

    def __init__(self, server: Http2Server, data_plane: DataPlane, most_calls: int) -> None:
        """Refuses messages of streams while `most_calls` are in progress in the process."""
        self._server, self._data_plane, self._most_calls = server, data_plane, most_calls

    def take(self, event: Event, message: bytes, method: PredictMethod) -> None:
        """Queues a call, or a message of a stream, that is not compressed."""
        if event.kind is EventKind.CANCELLED:
            return
        answer = partial(self._refuse, event.call)
        if event.kind is EventKind.MESSAGE:
            answer = partial(self._refuse_message, event.call, message)
            if self._data_plane.calls.in_progress >= self._most_calls:
                answer(self._data_plane.refuse_unread(self._most_calls))
                return
        arrival = Arrival(
            method,
            event.seconds_left,
            event.metadata,
            event.is_drawn,
            number=event.call,
            place=event.place,
        )
        self._data_plane.submit(MESSAGE_CODECS[method], message, answer, arrival)

    def _refuse(self, number: int, outcome: Answer | Status) -> None:
        status = _refusal(outcome)
        self._server.finish(number, status, trailing_metadata(status))

    def _refuse_message(self, number: int, message: bytes, outcome: Answer | Status) -> None:
        status = _refusal(outcome)
        self._server.refuse_message(number, stream_error(status.message, message), status)


def _refusal(outcome: Answer | Status) -> Status:
    if not isinstance(outcome, Status):
        raise InternalError("compiled code sends the answers of its calls")
    return outcome
