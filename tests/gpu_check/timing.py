"""Times of work on a device: medians between events, in seconds."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

_WARM_UP_SECONDS = 0.1  # a card that idled while something was compiled runs slowly at first
_REPEATS = 15
# What keeps a device busy while the host starts what is timed: some 100 us.
_WAIT_CYCLES = 200_000
_FLUSHED_BYTES = 256 << 20  # several times the cache of any card that is meant


def seconds_of(
    steps: Sequence[Callable[[], None]],
    device: torch.device,
    *,
    graph: bool = True,
    cold: bool = False,
) -> float:
    """The median time of one step when all run one after the other.

    Args:
        steps: equal work on different data, so that no cache keeps it all.
        device: where they run. On a CPU, which only tries the script, they run once.
        graph: capture the steps as a CUDA graph, without the launches' gaps.
        cold: begin with nothing of theirs in the device's cache.
    """
    if device.type == "cpu":
        begin = time.perf_counter()
        for step in steps:
            step()
        return (time.perf_counter() - begin) / len(steps)
    for step in steps:
        step()
    torch.cuda.synchronize(device)
    run = _captured(steps) if graph else _all(steps)
    begin = time.perf_counter()
    while time.perf_counter() - begin < _WARM_UP_SECONDS:
        run()
        torch.cuda.synchronize(device)
    flushed = torch.empty(_FLUSHED_BYTES if cold else 0, dtype=torch.uint8, device=device)
    return statistics.median(_timed(run, flushed) / len(steps) for _ in range(_REPEATS))


def _timed(run: Callable[[], None], flushed: torch.Tensor) -> float:
    begin, end = _event(), _event()
    # The first event is reached when the device gets to it: it must find the work behind it.
    sleep: Any = torch.cuda._sleep
    sleep(_WAIT_CYCLES)
    if flushed.numel():
        flushed.random_()
    begin.record()
    run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000


def _event() -> Any:
    make: Any = torch.cuda.Event  # which has no types
    return make(enable_timing=True)


def _all(steps: Sequence[Callable[[], None]]) -> Callable[[], None]:
    def run() -> None:
        for step in steps:
            step()

    return run


def _captured(steps: Sequence[Callable[[], None]]) -> Callable[[], None]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for step in steps:
            step()
    return graph.replay
