"""MLPerf Inference's offline and server scenarios on an engine, in this process.

Offline: all requests exist from the beginning, and threads run batch after batch. Server: requests
arrive at random times; a free thread merges waiting requests into one batch of bounded size.
Latency counts from a request's due time.
"""

import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter, sleep

import numpy as np
from numpy.typing import NDArray

from sharded_infer.inputs.merge import merge_inputs
from sharded_infer.inputs.model_input import ModelInput

Run = Callable[[ModelInput], object]


@dataclass(frozen=True, slots=True)
class ServerFigures:
    """Rates, latencies and batches of requests at random times; the last answer ends the rate."""

    offered_per_second: float
    answered_per_second: float
    latency_ms: dict[str, float]
    mean_batch: float


def run_offline(run: Run, batches: Sequence[ModelInput], *, threads: int, seconds: float) -> float:
    """Run batches in turn on threads for `seconds`, with a thread-safe `run`; samples a second."""
    run(batches[0])
    turn, done, lock = itertools.count(), 0, threading.Lock()
    began = perf_counter()

    def work() -> None:
        nonlocal done
        while perf_counter() - began < seconds:
            batch = batches[next(turn) % len(batches)]
            run(batch)
            with lock:
                done += batch.batch_size

    _on_threads(work, threads)
    return done / (perf_counter() - began)


def run_server(
    run: Run,
    requests: Sequence[ModelInput],
    *,
    rate: float,
    seconds: float,
    threads: int,
    max_batch: int,
    seed: int = 1,
) -> ServerFigures:
    """Run requests in turn for `seconds`, with a thread-safe `run` and exponential distances.

    A batch of several requests has at most `max_batch` samples.
    """
    run(requests[0])
    gaps = np.random.default_rng(seed).exponential(1 / rate, max(1, round(rate * seconds)))
    queue = _DueRequests(np.cumsum(gaps), requests, max_batch)
    _on_threads(lambda: queue.serve(run), threads)
    latency = queue.latency * 1e3
    return ServerFigures(
        offered_per_second=len(gaps) / float(queue.due[-1]),
        answered_per_second=len(gaps) / float((queue.due + queue.latency).max()),
        latency_ms={f"p{p}": float(np.percentile(latency, p)) for p in (50, 95, 99)},
        mean_batch=queue.samples / queue.batches,
    )


class _DueRequests:
    """Due requests, taken by the next free thread, with latencies in seconds from the due time."""

    def __init__(
        self, due: NDArray[np.float64], requests: Sequence[ModelInput], max_batch: int
    ) -> None:
        self.due = due
        self.latency = np.zeros(len(due))
        self.samples = self.batches = 0
        self._requests, self._max_batch = requests, max_batch
        self._next = 0
        self._lock = threading.Lock()
        self._began = perf_counter()

    def serve(self, run: Run) -> None:
        while (taken := self._take()) is not None:
            first, last = taken
            count = len(self._requests)
            batch = merge_inputs([self._requests[i % count] for i in range(first, last)])
            run(batch)
            self.latency[first:last] = perf_counter() - self._began - self.due[first:last]

    def _take(self) -> tuple[int, int] | None:
        """First and last (exclusive) request of the next batch; None after the last batch."""
        with self._lock:
            first = self._next
            if first == len(self.due):
                return None
            wait = self.due[first] - (perf_counter() - self._began)
            if wait > 0:
                # With the lock: no other thread could take a request earlier.
                sleep(wait)
            now, last, samples = perf_counter() - self._began, first, 0
            while last < len(self.due) and (last == first or self.due[last] <= now):
                size = self._requests[last % len(self._requests)].batch_size
                if last > first and samples + size > self._max_batch:
                    break
                samples += size
                last += 1
            self._next = last
            self.samples += samples
            self.batches += 1
            return first, last


def _on_threads(work: Callable[[], None], count: int) -> None:
    """Run work on `count` threads until all have ended, and raise their first exception."""
    with ThreadPoolExecutor(count) as threads:
        for ended in [threads.submit(work) for _ in range(count)]:
            ended.result()
