"""Times of work on a device: medians of graph replays between events, in seconds."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

_WARM_UPS = 3
_REPEATS = 15


def seconds_of(
    steps: Sequence[Callable[[], None]], device: torch.device, *, graph: bool = True
) -> float:
    """The median time of one step when all run one after the other.

    Args:
        steps: equal work on different data, so that no cache keeps it all.
        device: where they run. On a CPU, which only tries the script, they run once.
        graph: capture the steps as a CUDA graph, without the launches' gaps.
    """
    if device.type == "cpu":
        begin = time.perf_counter()
        for step in steps:
            step()
        return (time.perf_counter() - begin) / len(steps)
    for _ in range(_WARM_UPS):
        for step in steps:
            step()
    torch.cuda.synchronize(device)
    run = _captured(steps) if graph else _all(steps)
    run()
    times = []
    for _ in range(_REPEATS):
        events: list[Any] = [_event() for _ in range(2)]
        events[0].record()
        run()
        events[1].record()
        events[1].synchronize()
        times.append(float(events[0].elapsed_time(events[1])) / 1000 / len(steps))
    return statistics.median(times)


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
