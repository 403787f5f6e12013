"""CUDA graphs of this process: captured and destroyed one at a time.

torch keeps the graphs of a device in a set that no lock guards (2.11: `register_graph` of its
generators), and other versions' graphs go while one version's are captured.
"""

import contextlib
import gc
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

from sharded_infer.device.runtime import Work

_CHANGING = threading.Lock()
# What held a graph that nobody replays any more.
_unused: deque[list[torch.cuda.CUDAGraph]] = deque()


class CapturedGraph:
    """A graph to be replayed on the current stream; destroyed some time after it is let go."""

    __slots__ = ("__weakref__", "_held")

    def __init__(self, graph: torch.cuda.CUDAGraph) -> None:
        """Takes it over: nobody else may hold it."""
        self._held = [graph]
        weakref.finalize(self, _let_go, self._held).atexit = False

    def __call__(self) -> None:
        """Starts all that was captured."""
        self._held[0].replay()


def capture(stream: torch.cuda.Stream, work: Work, pool: Any) -> CapturedGraph:
    """Captures what work puts on a stream.

    Args:
        stream: idle.
        work: starts it.
        pool: the memory that it writes, from `torch.cuda.graph_pool_handle`.

    Raises:
        Exception: what `work` raised, or torch, where something cannot be captured.
    """
    device = stream.device
    # torch.cuda.graph would hold the whole device up; other versions are being served.
    with _CHANGING, _no_collection(), torch.cuda.device(device), torch.cuda.stream(stream):
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            work()
        except BaseException:
            _give_up(graph, device, pool)
            raise
        try:
            graph.capture_end()
        except RuntimeError:
            # Something that cannot be captured may show only now.
            _end_allocation(device, pool)
            raise
        captured = CapturedGraph(graph)
        del graph
    _destroy_unused()
    return captured


def release_cached(device: torch.device) -> None:
    """Gives a device back what torch keeps of freed memory: graphs' pools cannot take it over."""
    # torch asserts that nothing is being captured.
    with _CHANGING, torch.cuda.device(device):
        torch.cuda.empty_cache()


def _give_up(graph: torch.cuda.CUDAGraph, device: torch.device, pool: Any) -> None:
    """Ends a capture that failed, or the stream and torch's allocator would stay in it."""
    try:
        graph.capture_end()
    except RuntimeError:
        _end_allocation(device, pool)


def _end_allocation(device: torch.device, pool: Any) -> None:
    """Takes torch's allocator out of a capture that `capture_end` refused to end."""
    # It looks at the stream first, and then (2.11) does not get to the allocator.
    end: Any = torch._C._cuda_endAllocateToPool
    with contextlib.suppress(RuntimeError):
        end(device.index, pool)


def _let_go(held: list[torch.cuda.CUDAGraph]) -> None:
    _unused.append(held)
    _destroy_unused()


def _destroy_unused() -> None:
    """Destroys what nobody replays, unless another thread is at it or captures, which does then.

    It waits for nobody: a collection may bring it about anywhere.
    """
    while _unused and _CHANGING.acquire(blocking=False):
        try:
            while _unused:
                _unused.popleft().clear()
        finally:
            _CHANGING.release()


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Collects no garbage meanwhile: freeing another version's memory would break a capture."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
