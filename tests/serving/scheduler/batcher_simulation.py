"""A server around the batcher on a virtual clock.

It calls the batcher as a server does: `take` after every offer, every finish and at `due`.
"""

import heapq
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

from serving.scheduler.batching import BatchingMode, BatchingPolicy
from serving.scheduler.version_queue import VersionQueue
from tests.reference.batcher import Batch
from tests.reference.request_queue import QueuedRequest
from tests.support.compiled_batcher import CompiledBatcher

Curve = Callable[[int], float]
Service = Callable[[Batch[Any]], float]
NEVER = math.inf


@dataclass(frozen=True, slots=True)
class Arrival:
    """A future request: when it comes, and how long its client waits for the answer, in seconds."""

    at: float
    samples: int = 1
    queue: int = 0
    deadline_seconds: float = NEVER
    priority: int = 0


class Simulated(QueuedRequest):
    def __init__(self, queue: VersionQueue, arrival: Arrival, **fields: Any) -> None:
        super().__init__(queue, **fields)
        self.arrival = arrival


@dataclass(frozen=True, slots=True)
class Run:
    batch: Batch[Simulated]
    ended: float


class VirtualServer:
    """Drives a batcher, which has no queues yet, through arrivals; `service` are batches' times."""

    def __init__(
        self, batcher: CompiledBatcher, queues: Sequence[VersionQueue], service: Service
    ) -> None:
        self.batcher = batcher
        self.queues = queues
        self.now = 0.0
        self.requests: list[Simulated] = []
        self.runs: list[Run] = []
        self.most_waiting = 0
        self._service = service
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._timer = NEVER
        self._arrivals: Iterator[Arrival] = iter(())
        for queue in queues:
            batcher.add_queue(queue)

    def run(self, arrivals: Iterable[Arrival]) -> "VirtualServer":
        self._arrivals = iter(arrivals)
        self._expect_next()
        while self._events:
            self.now, _, happen = heapq.heappop(self._events)
            happen()
        return self

    def delays(self) -> list[float]:
        return [run.ended - request.arrived for run in self.runs for request in run.batch.requests]

    def in_time(self, begin: float = -1.0, end: float = NEVER) -> list[Simulated]:
        """Requests that were answered before their deadline, between two moments."""
        return [
            request
            for run in self.runs
            for request in run.batch.requests
            if begin < run.ended <= min(end, request.deadline)
        ]

    def _at(self, when: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), happen))

    def _expect_next(self) -> None:
        arrival = next(self._arrivals, None)
        if arrival is not None:
            self._at(arrival.at, partial(self._arrive, arrival))

    def _arrive(self, arrival: Arrival) -> None:
        request = Simulated(
            self.queues[arrival.queue],
            arrival,
            samples=arrival.samples,
            arrived=self.now,
            deadline=self.now + arrival.deadline_seconds,
            priority=arrival.priority,
        )
        self.requests.append(request)
        self.batcher.offer(request, self.now)
        self.most_waiting = max(self.most_waiting, self.batcher.requests)
        self._expect_next()
        self._take()

    def _wake(self) -> None:
        if self.now >= self._timer:
            self._timer = NEVER
            self._take()

    def _finish(self, batch: Batch[Any]) -> None:
        self.runs.append(Run(batch, self.now))
        self.batcher.finish(batch, self.now)
        self._take()

    def _take(self) -> None:
        while (batch := self.batcher.take(self.now).batch) is not None:
            self._at(self.now + self._service(batch), partial(self._finish, batch))
        due = self.batcher.due(self.now)
        if due < self._timer:
            self._timer = due
            self._at(due, self._wake)


def linear(samples: int) -> float:
    """Merging saves nothing: 10 µs a sample."""
    return 10e-6 * samples


def fixed(samples: int) -> float:
    """Merging saves nearly all: 2 ms a batch, 2 µs a sample."""
    return 2e-3 + 2e-6 * samples


def mixed(samples: int) -> float:
    """Between both: 1 ms a batch, 10 µs a sample."""
    return 1e-3 + 10e-6 * samples


def measured(curve: Curve, *, factor: float = 1.0) -> dict[int, float]:
    """Seconds of a warm-up by samples, at the powers of two; `factor`: what they are off by."""
    return {2**power: factor * curve(2**power) for power in range(11)}


def queue_of(
    curve: Curve, mode: BatchingMode = BatchingMode.AUTO, *, factor: float = 1.0
) -> VersionQueue:
    return VersionQueue(BatchingPolicy(mode, 1024, 0.001), measured(curve, factor=factor))


def noisy(curve: Curve, generator: random.Random, noise: float = 0.05) -> Service:
    return lambda batch: curve(batch.samples) * generator.uniform(1.0 - noise, 1.0 + noise)


def poisson(
    rate: float, seconds: float, generator: random.Random, **fields: Any
) -> Iterator[Arrival]:
    """Independent requests at `rate` a second; `fields` are those of every `Arrival`."""
    at = generator.expovariate(rate)
    while at < seconds:
        yield Arrival(at, **fields)
        at += generator.expovariate(rate)
