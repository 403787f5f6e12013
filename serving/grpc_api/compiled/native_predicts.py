"""Predict calls of the native transport that need Python."""

from serving.grpc_api.status_codes import trailing_metadata
from serving.inference.data_plane import DataPlane
from serving.inference.predict_call import PredictCall
from serving.protocol.codec import MESSAGE_CODECS
from serving.protocol.predict_method import PredictMethod
from serving.status import Status
from serving.transport.events import Event, EventKind
from serving.transport.http2_server import Http2Server


class NativePredicts:
    """Open predict calls of one server, by number. Thread-safe."""

    def __init__(self, server: Http2Server, data_plane: DataPlane) -> None:
        self._server, self._data_plane = server, data_plane
        self._open: dict[int, PredictCall] = {}

    def take(self, event: Event, message: bytes, method: PredictMethod) -> None:
        """Queues a call by its uncompressed message, or cancels it."""
        if event.kind is not EventKind.CANCELLED:
            self._submit(event, message, method)
            return
        call = self._open.get(event.call)
        if call is None:
            self._data_plane.cancel_held(event.call)
        else:
            self._data_plane.cancel(call)

    def reply(self, number: int, outcome: bytes | Status) -> None:
        """Answers a call."""
        if isinstance(outcome, Status):
            self._server.finish(number, outcome, trailing_metadata(outcome))
        else:
            self._server.respond(number, outcome)

    def _submit(self, event: Event, message: bytes, method: PredictMethod) -> None:
        number, data_plane = event.call, self._data_plane
        data_plane.calls.add_predict(1)

        def reply(outcome: bytes | Status) -> None:
            self._open.pop(number, None)
            try:
                self.reply(number, outcome)
            finally:
                data_plane.calls.add_predict(-1)

        call = data_plane.submit(
            MESSAGE_CODECS[method],
            message,
            reply,
            method=method,
            time_remaining=event.seconds_left,
            metadata=event.metadata,
            drawn=event.is_drawn,
            number=number,
        )
        if call is not None:
            self._open[number] = call
            if call.done:
                self._open.pop(number, None)
