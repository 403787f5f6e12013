"""The compiled scheduler with the interface of its reference: requests in, batches out."""

from collections.abc import Iterable
from itertools import count
from types import SimpleNamespace
from typing import Any

from serving.abi.model import Model
from serving.abi.scheduler import State
from serving.inference.call_batch import CallBatch
from serving.inference.predict_calls import PredictCalls, ReadCall
from serving.protocol.predict_method import PredictMethod
from serving.protocol.request_header import RequestHeader
from serving.scheduler.refusals import Refusal
from serving.scheduler.scheduler import QueueLimits, Scheduler
from serving.scheduler.version_queue import VersionQueue
from sharded_infer.inputs.model_input import ModelInput
from tests.reference.batcher import Batch, Taken
from tests.reference.request_queue import QueuedRequest

# A model without inputs and outputs: a call is nothing but its samples.
_READER = SimpleNamespace(native=SimpleNamespace(model=Model()), reads_compiled=False)
_SPEC = SimpleNamespace(tower=SimpleNamespace(outputs=()), mapped_tables=())


class CompiledBatcher(Scheduler):
    """A `tests.reference.batcher.Batcher`; requests are predict calls of compiled code.

    Attributes:
        versions: of the queues that it has had, for `calls.routes`.
    """

    def __init__(self, *, slots: int = 1, limits: QueueLimits | None = None) -> None:
        super().__init__(slots=slots, limits=limits)
        self.calls = PredictCalls(self)
        self.versions: dict[VersionQueue, Any] = {}
        self._numbers = count(1)
        self._requests: dict[int, Any] = {}
        # Of requests that have been queued, and addresses of running batches.
        self._number_of: dict[Any, int] = {}
        self._running: dict[Batch[Any], int] = {}

    def add_queue(self, queue: VersionQueue) -> None:
        model = SimpleNamespace(name="model", version=1, spec=_SPEC)
        self.versions[queue] = SimpleNamespace(reader=_READER, queue=queue, model=model)
        self.calls.routes.add(self.versions[queue])
        super().add_queue(queue)

    def offer(self, request: QueuedRequest, now: float) -> Refusal | None:
        number = next(self._numbers)
        call = ReadCall(
            PredictMethod.MODEL_INFER,
            RequestHeader("model", "", "", request.priority),
            ModelInput(request.samples, (), ()),
            number,
            by_python=True,
            arrived=request.arrived,
            deadline=request.deadline,
            size_bytes=request.size_bytes,
            outputs=b"",
        )
        # Another thread may take it at once.
        request.state = State.WAITING
        self._requests[number], self._number_of[request] = request, number
        with self.calls.routes.reading(self.versions[request.queue]) as route:
            refusal = self.calls.offer(call, route, (), now)
        if refusal is not None:
            request.state = State.NEW
            del self._requests[number], self._number_of[request]
        return refusal

    def take(self, now: float) -> Taken[Any]:
        begun, dropped, more = self.calls.begin(now)
        left = self._dropped(dropped, now)
        if begun is None:
            return Taken(None, left, more)
        info = begun.info
        batch: Batch[Any] = Batch(
            begun.version.queue, self._leave(begun), info.work, info.started, info.predicted
        )
        self._running[batch] = begun.address
        return Taken(batch, left, more)

    def cancel(self, request: QueuedRequest) -> bool:
        batch = self.calls.cancel(self._number_of[request])
        return bool(batch and self._dropped([batch], 0.0))

    def expire(self, now: float) -> list[Any]:
        return self._dropped(self.calls.expire(now), now)

    def occupy(self, queue: VersionQueue, now: float) -> Batch[Any] | None:
        address = self.calls.occupy(queue.address, now)
        if address is None:
            return None
        batch: Batch[Any] = Batch(queue, (), 1, now, queue.costs.predicted(1))
        self._running[batch] = address
        return batch

    def finish(self, batch: Batch[Any], now: float) -> None:
        self.calls.end(self._running.pop(batch), now, by_clock=True)

    def _leave(self, batch: CallBatch) -> tuple[Any, ...]:
        left = []
        for call in batch.calls():
            request = self._requests.pop(call.number)
            request.state = batch.state
            left.append(request)
        return tuple(left)

    def _dropped(self, batches: Iterable[CallBatch], now: float) -> list[Any]:
        dropped = []
        for batch in batches:
            dropped += self._leave(batch)
            self.calls.end(batch.address, now, by_clock=True)
        return dropped
