"""One ModelStreamInfer call: requests are read as they arrive and answered as they finish.

reader   a thread that reads and submits requests; it pauses while the allowed number have no sent
         answer, so that a client that reads slowly is read slowly
writer   the call's own thread, which sends answers in the order in which they finish
"""

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import grpc

from serving.grpc_api.streams.stream_requests import StreamRequests
from serving.inference.data_plane import DataPlane
from serving.status import Status


@dataclass(frozen=True, slots=True)
class Finished:
    """The result of one request of a stream.

    Attributes:
        message: the serialized request if it was refused, else empty.
        outcome: the serialized response, or the error.
    """

    message: bytes
    outcome: bytes | Status


class InferStream:
    """The requests of one stream. `read` and `answers` are each called by one thread.

    Attributes:
        given_way: why the server has ended the stream; None: it has not.
    """

    def __init__(
        self,
        data_plane: DataPlane,
        *,
        most_requests: int,
        most_calls: int,
        wake: Callable[[], None],
        metadata: Iterable[tuple[str, str | bytes]] = (),
    ) -> None:
        """Starts without requests.

        Args:
            most_requests: read but not yet answered; further ones are left unread.
            most_calls: in progress in the process; further requests are refused.
            wake: makes another thread run the submitted requests.
            metadata: the stream's metadata, used to trace requests.
        """
        self._calls = data_plane.calls
        self._most_requests = most_requests
        self._wake = wake
        self._changed = threading.Condition()
        self._requests = StreamRequests(
            data_plane, most_calls, self._changed, self._answered, metadata
        )
        self._finished: deque[Finished] = deque()
        self._sent = 0
        self._reading = True
        self._half_closed = False
        self.given_way: Status | None = None

    def read(self, messages: Iterator[bytes], time_remaining: Callable[[], float | None]) -> None:
        """Reads requests until the client sends no more or the stream ends.

        Args:
            messages: serialized ModelInferRequests.
            time_remaining: seconds to the deadline of the whole stream; None if it has none.
        """
        try:
            while self._has_room():
                message = next(messages, None)
                if message is None:
                    self._half_closed = True
                    return
                self._requests.submit(message, time_remaining())
                self._wake()
        except grpc.RpcError:
            pass  # the client has disconnected, so gRPC calls `end`
        finally:
            with self._changed:
                self._reading = False
                self._changed.notify_all()

    def answers(self) -> Iterator[Finished]:
        """Yields results as they finish, until every request that will be read is answered."""
        while (finished := self._next()) is not None:
            yield finished
            # The caller asks for the next result only after it has sent this one.
            self._was_sent()

    @property
    def is_over(self) -> bool:
        """Whether nothing more is sent on it."""
        return self._requests.ended

    @property
    def silent_since(self) -> float:
        """When it last had a request, or was opened, monotonic; infinity while it has one."""
        return math.inf if self._open else self._requests.silent_since

    @property
    def drained(self) -> bool:
        """Whether the server's shutdown ended the stream before the client did."""
        return self._requests.draining and not self._half_closed

    def drain(self) -> None:
        """Stops reading, and ends the stream when every request read is answered."""
        with self._changed:
            self._requests.draining = True
            self._changed.notify_all()

    def give_way(self, status: Status) -> bool:
        """Ends the stream with a status, unless it has a request; whether it has ended."""
        with self._changed:
            if not self._open and not self._requests.ended:
                self.given_way = status
                self._requests.ended = True
                self._changed.notify_all()
            return self._requests.ended

    def end(self) -> None:
        """Cancels unanswered requests after the call has ended. Further calls do nothing."""
        with self._changed:
            if self._requests.ended:
                return
            self._requests.ended = True
            left, self._sent = self._open, self._requests.taken
            self._finished.clear()
            self._changed.notify_all()
        self._requests.cancel()
        for _ in range(left):
            self._calls.add_predict(-1)

    @property
    def _open(self) -> int:
        """Requests that are read and whose answers are not sent."""
        return self._requests.taken - self._sent

    def _has_room(self) -> bool:
        """Waits until one more request may be read; False if none will be."""
        with self._changed:
            self._changed.wait_for(lambda: self._must_stop() or self._open < self._most_requests)
            return not self._must_stop()

    def _must_stop(self) -> bool:
        return self._requests.ended or self._requests.draining

    def _answered(self, message: bytes, outcome: bytes | Status) -> None:
        if not self._requests.ended:
            refused = message if isinstance(outcome, Status) else b""
            self._finished.append(Finished(refused, outcome))
            self._changed.notify_all()

    def _next(self) -> Finished | None:
        with self._changed:
            self._changed.wait_for(
                lambda: self._finished or self._requests.ended or self._is_over()
            )
            if self._requests.ended or not self._finished:
                # Requests read from now on are ignored.
                self._requests.ended = True
                return None
            return self._finished.popleft()

    def _is_over(self) -> bool:
        return not self._open and (self._requests.draining or not self._reading)

    def _was_sent(self) -> None:
        with self._changed:
            if self._requests.ended:
                return
            self._sent += 1
            self._changed.notify_all()
        self._calls.add_predict(-1)
