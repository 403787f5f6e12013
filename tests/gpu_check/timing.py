"""Times of work on a device: medians between events, in seconds."""

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from sharded_infer.engines.device.runtime.cuda_graphs import capture

_WARM_UP_SECONDS = 0.1  # a GPU that idled while something was compiled runs slowly at first
_REPEATS = 15
# Keeps a device busy while the host starts the timed work: some 100 us, and half as long again
# as that takes, for there are graphs of thousands of kernels.
_WAIT_CYCLES = 200_000
_WAIT_CYCLES_A_SECOND = 3e9
_FLUSHED_BYTES = 256 << 20  # several times the cache of any GPU that is meant


def seconds_of(
    steps: Sequence[Callable[[], None]],
    device: torch.device,
    *,
    graph: bool = True,
    cold: bool = False,
) -> float:
    """Median time of a step in a run of all steps, one after the other; a CPU runs them once.

    Steps do equal work on different data, so that no cache keeps it all. A `graph` has no gaps of
    launches; `cold` begins with nothing of theirs in the device's cache.
    """
    run = _all(steps)
    if device.type == "cpu":
        return _on_the_host(run) / len(steps)
    run = captured(run, device) if graph else run
    run()
    wait = _warm_up(run, device)
    flushed = torch.zeros(_FLUSHED_BYTES if cold else 0, dtype=torch.uint8, device=device)
    times = [_timed(run, wait, flushed) for _ in range(_REPEATS)]
    return statistics.median(times) / len(steps)


def seconds_after(
    prepared: Sequence[Callable[[], None]], run: Callable[[], None], device: torch.device
) -> float:
    """Median time of work on data that `prepared` functions change in turn, untimed.

    Shared data may stay in the cache. On a CPU the work runs once.
    """
    prepared[0]()
    if device.type == "cpu":
        return _on_the_host(run)
    wait = _warm_up(run, device)
    times = []
    for prepare in itertools.islice(itertools.cycle(prepared), _REPEATS):
        prepare()
        torch.cuda.synchronize(device)
        times.append(_timed(run, wait))
    return statistics.median(times)


def captured(work: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """Run work and capture it as a CUDA graph; return a function that replays it."""
    stream = _capture_stream(device)
    torch.cuda.synchronize(device)
    with torch.cuda.stream(stream):
        work()
    make: Any = torch.cuda.graph_pool_handle  # which has no types
    return capture(stream, work, make())


@cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    # One for all: cuBLAS keeps memory for each stream that it has seen.
    stream: torch.cuda.Stream = torch.cuda.Stream(device)
    return stream


def _warm_up(run: Callable[[], None], device: torch.device) -> int:
    """Run work for a while; return the cycles that the device waits for the host to start it."""
    launches = []
    begin = time.perf_counter()
    while time.perf_counter() - begin < _WARM_UP_SECONDS:
        launched = time.perf_counter()
        run()
        launches.append(time.perf_counter() - launched)
        torch.cuda.synchronize(device)
    return _WAIT_CYCLES + int(_WAIT_CYCLES_A_SECOND * statistics.median(launches))


def _timed(run: Callable[[], None], wait: int, flushed: torch.Tensor | None = None) -> float:
    begin, end = _event(), _event()
    # The first event is reached when the device gets to it: the work must be queued by then.
    sleep: Any = torch.cuda._sleep
    sleep(wait)
    if flushed is not None and flushed.numel():
        # Reads, not writes: written data stay in the cache, and are written out meanwhile.
        flushed.view(torch.int32).sum()
    begin.record()
    run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000


def _on_the_host(run: Callable[[], None]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def _event() -> Any:
    make: Any = torch.cuda.Event  # which has no types
    return make(enable_timing=True)


def _all(steps: Sequence[Callable[[], None]]) -> Callable[[], None]:
    def run() -> None:
        for step in steps:
            step()

    return run
