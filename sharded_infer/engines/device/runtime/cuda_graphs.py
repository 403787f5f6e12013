"""CUDA graphs of this process, captured and destroyed one at a time.

torch keeps a device's graphs in a set without a lock (2.11: `register_graph` of its generators):
one version's graphs could be destroyed while another's are captured.
"""

import contextlib
import gc
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

from sharded_infer.engines.device.runtime.runtime import Work

_CHANGING = threading.Lock()
# Holders of graphs that are no longer in use.
_unused: deque[list[torch.cuda.CUDAGraph]] = deque()


class CapturedGraph:
    """A graph that a call replays on the current stream; destroyed some time after its release."""

    __slots__ = ("__weakref__", "_held")

    def __init__(self, graph: torch.cuda.CUDAGraph) -> None:
        """Takes ownership; there must be no other reference to the graph."""
        self._held = [graph]
        weakref.finalize(self, _release, self._held).atexit = False

    def __call__(self) -> None:
        """Starts the captured work."""
        self._held[0].replay()


def capture(stream: torch.cuda.Stream, work: Work, pool: Any) -> CapturedGraph:
    """Captures the work that `work` puts on an idle stream, in a `graph_pool_handle` pool.

    Raises:
        Exception: from `work`, or from torch if the work cannot be captured.
    """
    device = stream.device
    # torch.cuda.graph would synchronize the whole device, on which other versions are served.
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
            # Some errors of a capture are only reported at its end.
            _end_allocation(device, pool)
            raise
        captured = CapturedGraph(graph)
        del graph
    _destroy_unused()
    return captured


def release_cached(device: torch.device) -> None:
    """Frees the memory that torch's allocator caches, which graphs' pools cannot reuse."""
    # torch asserts that no capture is in progress.
    with _CHANGING, torch.cuda.device(device):
        torch.cuda.empty_cache()


def _give_up(graph: torch.cuda.CUDAGraph, device: torch.device, pool: Any) -> None:
    """Ends a failed capture; otherwise the stream and torch's allocator stay in capture mode."""
    try:
        graph.capture_end()
    except RuntimeError:
        _end_allocation(device, pool)


def _end_allocation(device: torch.device, pool: Any) -> None:
    """Ends capture mode in torch's allocator after `capture_end` failed."""
    # `capture_end` checks the stream first and, on an error, skips the allocator (torch 2.11).
    end: Any = torch._C._cuda_endAllocateToPool
    with contextlib.suppress(RuntimeError):
        end(device.index, pool)


def _release(held: list[torch.cuda.CUDAGraph]) -> None:
    _unused.append(held)
    _destroy_unused()


def _destroy_unused() -> None:
    """Destroys unused graphs, or leaves them to the thread that holds the lock.

    Never waits for the lock, because garbage collection may call this anywhere.
    """
    while _unused and _CHANGING.acquire(blocking=False):
        try:
            while _unused:
                _unused.popleft().clear()
        finally:
            _CHANGING.release()


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Disables garbage collection: freeing another version's memory would break a capture."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
