"""MLPerf Inference's offline and server scenarios on an engine, in this process.

Offline: all requests exist from the beginning, and threads run batch after batch. Server: requests
arrive at random times; a free thread merges those that wait into one batch of bounded size. Latency
counts from the time at which a request was due.
"""

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter, sleep

import numpy as np
from numpy.typing import NDArray

from sharded_infer.inputs.merge import merge_inputs
from sharded_infer.inputs.model_input import ModelInput

Run = Callable[[ModelInput], object]


@dataclass(frozen=True, slots=True)
class ServerFigures:
    """Figures of requests at random times.

    Attributes:
        offered_per_second: offered requests.
        answered_per_second: requests, until the last was answered.
        mean_batch: samples of a batch.
    """

    offered_per_second: float
    answered_per_second: float
    latency_ms: dict[str, float]
    mean_batch: float


def run_offline(run: Run, batches: Sequence[ModelInput], *, threads: int, seconds: float) -> float:
    """Runs batches repeatedly on several threads.

    Args:
        run: scores a batch; any thread may call.
        batches: run in turn.
        threads: batches in flight.
        seconds: time in which batches are started.

    Returns:
        Samples scored in a second.
    """
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
    """Runs requests that come at random times.

    Args:
        run: scores a batch; any thread may call.
        requests: sent in turn.
        rate: requests a second, with exponential times between them.
        seconds: time in which requests arrive.
        threads: batches in flight.
        max_batch: samples of a batch of several requests.
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
    """Requests in the order in which they are due, taken by the next free thread.

    Attributes:
        due: seconds from the beginning.
        latency: seconds from the due time until the answer.
        samples: samples of all batches.
    """

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
        """Runs due requests until none is left."""
        while (taken := self._take()) is not None:
            first, last = taken
            count = len(self._requests)
            batch = merge_inputs([self._requests[i % count] for i in range(first, last)])
            run(batch)
            self.latency[first:last] = perf_counter() - self._began - self.due[first:last]

    def _take(self) -> tuple[int, int] | None:
        """First and last (exclusive) request of the next batch; None: none is left."""
        with self._lock:
            first = self._next
            if first == len(self.due):
                return None
            wait = self.due[first] - (perf_counter() - self._began)
            if wait > 0:
                # Nobody else could take anything either.
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
    """Runs work on `count` threads until all have ended.

    Raises:
        Exception: the first that a thread raised.
    """
    raised: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=guarded) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]
