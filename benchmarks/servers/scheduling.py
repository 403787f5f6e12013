"""Processor time of queueing and choosing a call.

Calls of one sample come as a transport's events, and then batches begin and end until none waits.
They run in no time, but count as 2 ms and 2 µs a sample. Times are processor time of one thread.
"""

import ctypes
import random
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic, thread_time
from types import SimpleNamespace
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2

from serving.abi.calls import Sender
from serving.bench.turns import Parts, Turns, medians
from serving.commands.bench.report import Report
from serving.inference.call_batch import CallBatch
from serving.inference.predict_calls import PredictCalls
from serving.protocol.predict_method import PredictMethod
from serving.protocol.readers.input_reader import InputReader
from serving.scheduler.batching import BatchingPolicy
from serving.scheduler.dispatcher import Dispatcher
from serving.scheduler.scheduler import QueueLimits, Scheduler
from serving.scheduler.version_queue import VersionQueue
from serving.transport.events import EVENT
from sharded_infer.errors import InputError, InternalError
from sharded_infer.progress import Progress
from sharded_infer.specs.model_spec import DenseSpec, ModelSpec, TableSpec

_SPEC = ModelSpec("bench", (TableSpec("item", 1, 4),), DenseSpec({"dense": 1}))
_MEASURED = {2**power: 2e-3 + 2e-6 * 2**power for power in range(11)}
# A measurement repeats until it has queued so many.
_LEAST_REQUESTS = 1000
# Seconds, in which more calls than `_MOST` could not be answered.
_DEADLINE, _SHORTEST, _LONGEST = 0.6, 0.3, 0.9
_MOST = 50_000
# For the dispatcher's loop: nothing takes so long.
_FAR_DEADLINE = 60.0


def measure_scheduling(waiting: Sequence[int], rounds: int, progress: Progress) -> Report:
    """Measure the scheduler with each number of requests that wait; medians of the rounds."""
    if max(waiting) > _MOST:
        raise InputError(f"concurrency: expected at most {_MOST} requests, got {max(waiting)}")
    turns = Turns(rounds, 0.0, progress).of({count: partial(_round, count) for count in waiting})
    costs = [{"waiting": count, **medians(turns[count])} for count in turns]
    headings = ("deadlines alike", "different", "dispatcher's loop")
    return Report(
        [("waiting", "d"), *((heading, ".2f") for heading in headings)],
        [list(cost.values()) for cost in costs],
        ["microseconds of processor time a request"],
        costs,
    )


def _round(waiting: int, number: int) -> Parts:
    """Microseconds of a call to be read, queued, begun and ended, and in the dispatcher's loop.

    With deadlines of the same length; with different ones most calls are queued between others.
    """
    draw = random.Random(number).uniform  # noqa: S311 - deadlines, no secret
    return {
        "alike": _Calls(waiting).decisions_us(lambda: _DEADLINE),
        "different": _Calls(waiting).decisions_us(lambda: draw(_SHORTEST, _LONGEST)),
        "dispatcher": _Calls(waiting).dispatcher_us(),
    }


class _Calls:
    """Calls that wait together, of a model with one number a sample; its tower does nothing."""

    def __init__(self, waiting: int) -> None:
        self._scheduler = Scheduler(limits=QueueLimits(requests=waiting))
        self._calls = PredictCalls(self._scheduler)
        queue = VersionQueue(BatchingPolicy(), _MEASURED)
        version: Any = SimpleNamespace(
            model=SimpleNamespace(name=_SPEC.name, version=1, spec=_SPEC),
            reader=InputReader(_SPEC, max_batch=1),
            queue=queue,
        )
        self._scheduler.add_queue(queue)
        self._calls.routes.add(version)
        self._calls.routes.set_names({(_SPEC.name, ""): version})
        # No call is answered.
        self._calls.attach((0, 0, 0, 0, 0), [PredictMethod.MODEL_INFER], waiting)
        request = service_pb2.ModelInferRequest(model_name=_SPEC.name)
        request.inputs.add(name="dense", datatype="FP32", shape=[1, 1])
        request.raw_input_contents.append(bytes(4))
        message = request.SerializeToString()
        self._message = ctypes.create_string_buffer(message, len(message))
        self._events = np.zeros(waiting, EVENT)
        self._events["call"] = np.arange(waiting)
        self._events["data"] = ctypes.addressof(self._message)
        self._events["bytes"] = len(message)

    def decisions_us(self, deadline: Callable[[], float]) -> float:
        """Microseconds of a call, of the calls alone."""

        def work() -> bool:
            batch, _ = self.begin(monotonic())
            if batch is not None:
                self.run(batch)
            return batch is not None

        return self._measure(deadline, work)

    def dispatcher_us(self) -> float:
        """Microseconds of a call, in the dispatcher's loop."""
        return self._measure(lambda: _FAR_DEADLINE, Dispatcher(self._scheduler, self).work)

    def begin(self, now: float) -> tuple[CallBatch | None, bool]:
        """Implements `Batches.begin`."""
        batch, dropped, more = self._calls.begin(now)
        for left in dropped:
            self._calls.end(left.address, now, by_clock=True)
        return batch, more

    def run(self, batch: CallBatch) -> None:
        """Implements `Batches.run`."""
        ended = batch.info.started + batch.info.predicted
        self._calls.end(batch.address, ended, by_clock=True)

    def expire(self, now: float) -> None:
        """Implements `Batches.expire`."""

    def occupy(self, queue: VersionQueue, now: float) -> None:
        """Implements `Batches.occupy`."""

    def _measure(self, deadline: Callable[[], float], work: Callable[[], bool]) -> float:
        waiting, events, spent = len(self._events), self._events, 0.0
        turns = -(-_LEAST_REQUESTS // waiting)
        for _ in range(turns):
            events["seconds_left"] = [deadline() for _ in range(waiting)]
            began = thread_time()
            taken = self._calls.take(Sender.GRPC, events.ctypes.data, waiting)
            while work():
                pass
            spent += thread_time() - began
            if taken.queued != waiting:
                raise InternalError(f"of {waiting} calls, {taken.queued} were queued")
        return spent / (turns * waiting) * 1e6
