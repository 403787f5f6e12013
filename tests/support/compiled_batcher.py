"""The compiled scheduler with the interface of its reference: requests in, batches out."""

from collections.abc import Iterable
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np

from serving.abi.calls import Form, ReadCall, Sender
from serving.abi.scheduler import State
from serving.abi.transport import EventKind
from serving.inference.call_batch import CallBatch
from serving.inference.predict_calls import PredictCalls
from serving.protocol.predict_method import PredictMethod
from serving.protocol.readers.input_reader import InputReader
from serving.protocol.wire_tensors import WireTensor, infer_message
from serving.scheduler.refusals import Refusal
from serving.scheduler.scheduler import QueueLimits, Scheduler
from serving.scheduler.version_queue import VersionQueue
from serving.transport.events import EVENT
from sharded_infer.specs.model_spec import DenseSpec, ModelSpec, TableSpec
from tests.reference.batcher import Batch, Taken
from tests.reference.request_queue import QueuedRequest

# A call is nothing but its samples.
_SPEC = ModelSpec("model", (TableSpec("t", 1, 1),), DenseSpec({"samples": 1}))
_READER = InputReader(_SPEC, max_batch=2**20)


class CompiledBatcher(Scheduler):
    """A `tests.reference.batcher.Batcher`; requests are predict calls of compiled code.

    Attributes:
        versions: of the queues that it has had, for `calls.routes`.
    """

    def __init__(self, *, slots: int = 1, limits: QueueLimits | None = None) -> None:
        super().__init__(slots=slots, limits=limits)
        self.calls = PredictCalls(self)
        self.calls.attach((0, 0, 0, 0, 0), (PredictMethod.MODEL_INFER,), most_calls=2**20)
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
        message = _message(request.samples)
        call = ReadCall(
            sender=Sender.GRPC,
            number=number,
            form=Form.INFER,
            size_bytes=request.size_bytes,
            priority=request.priority,
            arrived=request.arrived,
            deadline=request.deadline,
            outputs=bytes(len(_SPEC.tower.outputs)),
            id=b"",
            label=b"",
            message=message,
            message_bytes=len(message),
        )
        # Another thread may take it at once.
        request.state = State.WAITING
        self._requests[number], self._number_of[request] = request, number
        with self.calls.routes.reading(self.versions[request.queue]) as call.route:
            queued, refusal = self.calls.take_read(call, now)
        assert queued is (refusal is None)
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
        events = np.zeros(1, EVENT)
        events["call"], events["kind"] = self._number_of[request], EventKind.CANCELLED
        taken = self.calls.take(Sender.GRPC, events.ctypes.data, 1)
        return bool(self._dropped(taken.cancelled, 0.0))

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


def _message(samples: int) -> bytes:
    return infer_message([WireTensor("samples", "FP32", [samples, 1], bytes(4 * samples))])
