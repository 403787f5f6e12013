"""One ModelStreamInfer call: requests taken in as they come, answered as they finish.

reader   a thread that reads and submits requests; it pauses while as many as may have no answer
         or an unsent one, so that a client that reads slowly is read slowly
writer   the call's own thread, which sends what has finished, whichever request it belongs to
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import grpc

from serving.inference import Inference, Refusal
from serving.job import Job
from serving.predict_method import PredictMethod

_METHOD = PredictMethod.MODEL_STREAM_INFER
DRAINING = Refusal(grpc.StatusCode.UNAVAILABLE, "the server is draining")


@dataclass(frozen=True, slots=True)
class Finished:
    """What became of one request of a stream.

    Attributes:
        message: the request, serialized, if it was refused.
        outcome: its serialized response, or why there is none.
    """

    message: bytes
    outcome: bytes | Refusal


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """What a stream may do.

    Attributes:
        most_requests: read and not answered yet; more are left unread.
        refuse: why one more request cannot be taken in; None: it can.
        count: told 1 and -1 for each request.
    """

    most_requests: int
    refuse: Callable[[], Refusal | None]
    count: Callable[[int], None]


class InferStream:
    """The requests of one stream. `read` and `answers` are each called by one thread."""

    def __init__(
        self,
        inference: Inference,
        limits: StreamLimits,
        wake: Callable[[], None],
        metadata: Iterable[tuple[str, str | bytes]] = (),
    ) -> None:
        """Begins with none.

        Args:
            inference: answers the requests.
            limits: of this stream.
            wake: has what was submitted run, by another thread.
            metadata: what came with the stream, where requests are traced.
        """
        self._inference = inference
        self._limits = limits
        self._wake = wake
        self._metadata = metadata
        self._changed = threading.Condition()
        # By number; None until it is known.
        self._jobs: dict[int, Job | None] = {}
        self._finished: deque[Finished] = deque()
        self._taken = 0
        # Taken and not sent.
        self._open = 0
        self._reading = True
        self._half_closed = False
        self._draining = False
        self._ended = False

    def read(self, messages: Iterator[bytes], time_remaining: Callable[[], float | None]) -> None:
        """Takes requests until the client sends no more, or the stream ends.

        Args:
            messages: serialized ModelInferRequests.
            time_remaining: seconds to the deadline of the whole stream; None: it has none.
        """
        try:
            while self._has_room():
                message = next(messages, None)
                if message is None:
                    self._half_closed = True
                    return
                self._take(message, time_remaining())
        except grpc.RpcError:
            pass  # the client has gone: `end` is called
        finally:
            with self._changed:
                self._reading = False
                self._changed.notify_all()

    def answers(self) -> Iterator[Finished]:
        """What finishes, as it does, until all is answered that will be read."""
        while (finished := self._next()) is not None:
            yield finished
            # Whoever comes back for the next has sent this one.
            self._sent()

    @property
    def drained(self) -> bool:
        """Whether it ended because the server does, not because the client did."""
        return self._draining and not self._half_closed

    def drain(self) -> None:
        """Ends it when all that was read is answered."""
        with self._changed:
            self._draining = True
            self._changed.notify_all()

    def end(self) -> None:
        """Gives up what is not answered: nobody is there any more. Again: does nothing."""
        with self._changed:
            if self._ended:
                return
            self._ended = True
            jobs = [job for job in self._jobs.values() if job is not None]
            left, self._open = self._open, 0
            self._changed.notify_all()
        for job in jobs:
            self._inference.dispatcher.cancel(job)
        for _ in range(left):
            self._limits.count(-1)
        with self._changed:
            self._finished.clear()

    def _has_room(self) -> bool:
        """Waits until one more request may be read; False: none will be."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._ended or self._draining or self._open < self._limits.most_requests
            )
            return not (self._ended or self._draining)

    def _take(self, message: bytes, time_remaining: float | None) -> None:
        refusal = DRAINING if self._draining else self._limits.refuse()
        with self._changed:
            if self._ended:
                return
            number = self._taken
            self._taken += 1
            self._open += 1
            self._jobs[number] = None
        self._limits.count(1)

        def reply(outcome: bytes | Refusal) -> None:
            with self._changed:
                self._jobs.pop(number, None)
                if not self._ended:
                    refused = message if isinstance(outcome, Refusal) else b""
                    self._finished.append(Finished(refused, outcome))
                    self._changed.notify_all()

        if refusal is not None:
            reply(refusal)
            return
        job = self._inference.submit(
            message, time_remaining, reply, method=_METHOD, metadata=self._metadata
        )
        if job is None:
            return
        with self._changed:
            if number in self._jobs:
                self._jobs[number] = job
            ended = self._ended
        if ended:
            self._inference.dispatcher.cancel(job)
        self._wake()

    def _next(self) -> Finished | None:
        with self._changed:
            self._changed.wait_for(lambda: self._finished or self._ended or self._is_over())
            if self._ended or not self._finished:
                # What is read from now on comes too late.
                self._ended = True
                return None
            return self._finished.popleft()

    def _is_over(self) -> bool:
        return not self._open and (self._draining or not self._reading)

    def _sent(self) -> None:
        with self._changed:
            if self._ended:
                return
            self._open -= 1
            self._changed.notify_all()
        self._limits.count(-1)
