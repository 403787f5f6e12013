"""Processor time of queueing and choosing a request.

Requests of one sample are queued, and then taken and finished until none waits. Batches run in no
time, but count as 2 ms and 2 µs a sample. Times are processor time of one thread.
"""

import random
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic, thread_time
from typing import Any

from serving.scheduler.batcher import Batcher, QueueLimits

from serving.bench.turns import Parts, Turns, medians
from serving.commands.bench.report import Report
from serving.scheduler.batching import BatchingPolicy, QueuedRequest
from serving.scheduler.dispatcher import Dispatcher
from serving.scheduler.version_queue import VersionQueue
from sharded_infer.progress import Progress

_MEASURED = {2**power: 2e-3 + 2e-6 * 2**power for power in range(11)}
# A measurement repeats until it has queued so many.
_LEAST_REQUESTS = 1000
_DEADLINE, _SHORTEST, _LONGEST = 0.6, 0.3, 0.9
# For the dispatcher's loop, whose clock is real: nothing takes so long.
_FAR_DEADLINE = 60.0


def measure_scheduling(waiting: Sequence[int], rounds: int, progress: Progress) -> Report:
    """Measure the scheduler with each number of requests that wait; medians of the rounds."""
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
    """Microseconds of a request to be offered, taken and finished, and in the dispatcher's loop.

    With deadlines of the same length; with different ones most requests are queued between others;
    and in the loop from its arrival to its result.
    """
    limits = QueueLimits(requests=waiting)
    draw = random.Random(number).uniform  # noqa: S311 - deadlines, no secret
    return {
        "alike": _decisions_us(Batcher(limits=limits), waiting, lambda: _DEADLINE),
        "different": _decisions_us(
            Batcher(limits=limits), waiting, lambda: draw(_SHORTEST, _LONGEST)
        ),
        "dispatcher": _dispatcher_us(Batcher(limits=limits), waiting),
    }


def _decisions_us(scheduler: Batcher[Any], waiting: int, deadline: Callable[[], float]) -> float:
    queue = VersionQueue(BatchingPolicy(), _MEASURED)
    scheduler.add_queue(queue)
    turns, now, spent = -(-_LEAST_REQUESTS // waiting), 0.0, 0.0
    for _ in range(turns):
        requests = [
            QueuedRequest(queue, samples=1, arrived=now, deadline=now + deadline())
            for _ in range(waiting)
        ]
        began = thread_time()
        for request in requests:
            scheduler.offer(request, now)
        while (batch := scheduler.take(now).batch) is not None:
            scheduler.finish(batch, seconds=batch.predicted, now=now)
        spent += thread_time() - began
        now += 1.0
    return spent / (turns * waiting) * 1e6


def _dispatcher_us(scheduler: Batcher[Any], waiting: int) -> float:
    queue = VersionQueue(BatchingPolicy(), _MEASURED)
    dispatcher: Dispatcher[QueuedRequest] = Dispatcher(
        scheduler,
        lambda requests: [True] * len(requests),
        observe=_nothing,
        on_dropped=_nothing,
        on_waiting=_nothing,
    )
    dispatcher.add_queue(queue)
    turns, spent = -(-_LEAST_REQUESTS // waiting), 0.0
    for _ in range(turns):
        began = thread_time()
        for _ in range(waiting):
            now = monotonic()
            deadline = now + _FAR_DEADLINE
            # As a transport does before it reads the request.
            dispatcher.deadline_unreachable(queue, deadline)
            dispatcher.offer(
                QueuedRequest(queue, samples=1, arrived=now, deadline=deadline, on_done=_nothing)
            )
        while dispatcher.work():
            pass
        spent += thread_time() - began
    return spent / (turns * waiting) * 1e6


def _nothing(*_: object) -> None:
    """Ignores the dispatcher's reports."""
