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
    due, sizes = np.cumsum(gaps), [request.batch_size for request in requests]
    ends, batches = np.zeros(len(due)), [(0, 0)]  # first and last (exclusive) request of each
    lock, began = threading.Lock(), perf_counter()

    def take() -> tuple[int, int] | None:
        with lock:
            first = last = batches[-1][1]
            if first == len(due):
                return None
            wait = due[first] - (perf_counter() - began)
            if wait > 0:
                # With the lock: no other thread could take a request earlier.
                sleep(wait)
            now, samples = perf_counter() - began, 0
            while last < len(due) and (last == first or due[last] <= now):
                samples += sizes[last % len(sizes)]
                if last > first and samples > max_batch:
                    break
                last += 1
            batches.append((first, last))
            return first, last

    def serve() -> None:
        while (batch := take()) is not None:
            run(merge_inputs([requests[n % len(requests)] for n in range(*batch)]))
            ends[slice(*batch)] = perf_counter() - began

    _on_threads(serve, threads)
    latency = (ends - due) * 1e3
    samples = sum(sizes[n % len(sizes)] for n in range(len(due)))
    return ServerFigures(
        offered_per_second=len(due) / float(due[-1]),
        answered_per_second=len(due) / float(ends.max()),
        latency_ms={f"p{p}": float(np.percentile(latency, p)) for p in (50, 95, 99)},
        mean_batch=samples / (len(batches) - 1),
    )


def _on_threads(work: Callable[[], None], count: int) -> None:
    """Run work on `count` threads until all have ended, and raise their first exception."""
    with ThreadPoolExecutor(count) as threads:
        for ended in [threads.submit(work) for _ in range(count)]:
            ended.result()
