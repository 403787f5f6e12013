"""ModelStreamInfer calls over the native transport, without threads of their own.

The transport stops reading a stream while the allowed number of its requests have no sent answer,
so that a slowly reading client is read slowly.
"""

import threading

from serving.grpc_api.streams.stream_messages import stream_error
from serving.grpc_api.streams.stream_requests import StreamRequests
from serving.inference.data_plane import DataPlane
from serving.protocol.infer_answer import Answer
from serving.status import DRAINING, Status
from serving.transport.events import Event
from serving.transport.http2_server import Http2Server

# Triton's option: the first error ends the stream with a status code.
STRICT = ("triton_grpc_error", "true")


class NativeStream:
    """Requests of one stream. Events come in order; answers come on any thread."""

    def __init__(
        self, server: Http2Server, data_plane: DataPlane, opened: Event, most_calls: int
    ) -> None:
        """Starts without requests; refuses them beyond `most_calls` in the process."""
        self._server = server
        self._call = opened.call
        self._strict = STRICT in opened.metadata
        self._lock = threading.Lock()
        metadata = opened.metadata if data_plane.traces else ()
        self._requests = StreamRequests(
            data_plane, most_calls, self._lock, self._answered, metadata
        )
        self._half_closed = False

    @property
    def is_over(self) -> bool:
        """True if nothing more is sent on it."""
        return self._requests.ended

    @property
    def silent_since(self) -> float:
        """End of its last request, or its opening, monotonic; infinity while it has one."""
        return self._requests.silent_since

    def message_came(self, event: Event, message: bytes) -> None:
        """Submits a request. The caller must call `Dispatcher.work` afterwards."""
        self._requests.submit(message, event.seconds_left)

    def half_closed(self) -> None:
        """Ends the stream once its requests are answered: the client sends no more."""
        with self._lock:
            self._half_closed = True
            self._end_if_over()

    def drain(self) -> None:
        """Ends the stream once every received request is answered."""
        with self._lock:
            self._requests.draining = True
            self._end_if_over()

    def give_way(self, status: Status) -> bool:
        """Ends the stream with a status and returns True, unless it has a request."""
        with self._lock:
            if not len(self._requests) and not self._requests.ended:
                self._end_with(status)
            return self._requests.ended

    def end(self) -> None:
        """Cancels unanswered requests: the client has gone. Idempotent."""
        with self._lock:
            self._requests.ended = True
        self._requests.cancel()

    def _answered(self, message: bytes, outcome: Answer | Status) -> None:
        if self._requests.ended:
            return
        if not isinstance(outcome, Status):
            self._server.send(self._call, outcome.body)
        elif self._strict:
            self._end_with(outcome)
        else:
            self._server.send(self._call, stream_error(outcome.message, message))
        self._end_if_over()

    def _end_if_over(self) -> None:
        over = self._half_closed or self._requests.draining
        if over and not len(self._requests) and not self._requests.ended:
            self._end_with(None if self._half_closed else DRAINING)

    def _end_with(self, status: Status | None) -> None:
        # Under the lock, so that no answer comes after the stream's end.
        self._requests.ended = True
        self._server.finish(self._call, status)
