"""Requests of one ModelStreamInfer call, over any transport."""

import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from time import monotonic

from serving.inference.data_plane import Arrival, DataPlane
from serving.protocol.codec import MESSAGE_CODECS
from serving.protocol.infer_answer import Answer
from serving.protocol.predict_method import PredictMethod
from serving.status import DRAINING, Status

_METHOD = PredictMethod.MODEL_STREAM_INFER


class StreamRequests:
    """Submits requests, and tracks them until they are answered. Thread-safe.

    Attributes:
        taken: number of submitted or refused requests.
        draining: further ones are refused.
        ended: further ones are ignored.
    """

    def __init__(
        self,
        data_plane: DataPlane,
        most_calls: int,
        lock: AbstractContextManager[bool],
        answered: Callable[[bytes, Answer | Status], None],
        metadata: Iterable[tuple[str, str | bytes]] = (),
    ) -> None:
        """Starts without requests.

        Args:
            most_calls: in progress in the process; further requests are refused.
            lock: guards the stream's state, that of its requests included.
            answered: called under the lock with each message and its outcome, also after the end.
            metadata: the stream's, used to trace requests.
        """
        self._data_plane = data_plane
        self._most_calls = most_calls
        self._lock = lock
        self._answered = answered
        self._metadata = metadata
        # Numbers of unanswered calls by request; None until the data plane returns it.
        self._calls: dict[int, int | None] = {}
        self._changed_at = monotonic()
        self.taken = 0
        self.draining = False
        self.ended = False

    def __len__(self) -> int:
        """Number of unanswered requests."""
        return len(self._calls)

    @property
    def silent_since(self) -> float:
        """When the last one was answered, monotonic; infinity while one is not."""
        return math.inf if self._calls else self._changed_at

    def submit(self, message: bytes, time_remaining: float | None) -> None:
        """Submits a request. The caller must call `Dispatcher.work` afterwards.

        Args:
            time_remaining: seconds to the deadline of the whole stream; None if it has none.
        """
        with self._lock:
            if self.ended:
                return
            number = self.taken
            self.taken += 1
            self._calls[number] = None
            refusal = DRAINING if self.draining else None
        refusal = refusal or self._refusal()

        def reply(outcome: Answer | Status) -> None:
            with self._lock:
                self._calls.pop(number, None)
                self._changed_at = monotonic()
                self._answered(message, outcome)

        if refusal is not None:
            reply(refusal)
            return
        arrival = Arrival(_METHOD, time_remaining, self._metadata)
        call = self._data_plane.submit(MESSAGE_CODECS[_METHOD], message, reply, arrival)
        if call is None:
            return
        with self._lock:
            if number in self._calls:
                self._calls[number] = call
            ended = self.ended
        if ended:
            self._data_plane.cancel(call)

    def cancel(self) -> None:
        """Cancels unanswered requests, once the stream has ended."""
        with self._lock:
            calls = [call for call in self._calls.values() if call is not None]
        for call in calls:
            self._data_plane.cancel(call)

    def _refusal(self) -> Status | None:
        if self._data_plane.calls.in_progress < self._most_calls:
            return None
        return self._data_plane.refuse_unread(self._most_calls)
