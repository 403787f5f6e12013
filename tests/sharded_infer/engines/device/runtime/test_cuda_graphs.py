import contextlib
import gc
import threading
import weakref
from typing import Any

import pytest
import torch

from sharded_infer.engines.device.runtime import cuda_graphs
from sharded_infer.engines.device.runtime.cuda_graphs import CapturedGraph, capture


class Graph:
    """Stands in for torch's, which needs a GPU."""

    def __init__(self) -> None:
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1


def captured() -> tuple[CapturedGraph, "weakref.ref[Graph]"]:
    graph: Any = Graph()
    return CapturedGraph(graph), weakref.ref(graph)


def test_a_graph_is_replayed_until_it_is_freed() -> None:
    graph, inner = captured()
    graph()
    graph()
    held = inner()
    assert held is not None and held.replays == 2
    del held, graph
    gc.collect()
    assert inner() is None


def test_while_one_is_captured_none_is_destroyed_and_nobody_waits() -> None:
    graphs = [captured() for _ in range(3)]
    inner = [one for _, one in graphs]
    with cuda_graphs._CHANGING:
        # On a thread that would otherwise wait for ever: this one has the lock.
        dropping = threading.Thread(target=graphs.clear)
        dropping.start()
        dropping.join(10)
        gc.collect()
        assert not dropping.is_alive()
        assert all(one() is not None for one in inner)
    # Whoever lets the next one go destroys them all.
    graph, last = captured()
    del graph
    gc.collect()
    assert last() is None and all(one() is None for one in inner)


class Invalidated(Graph):
    """A capture that torch reports as failed at its end."""

    def capture_begin(self, **_settings: Any) -> None:
        """Begins."""

    def capture_end(self) -> None:
        raise RuntimeError("CUDA error: operation failed due to a previous error during capture")


class Stream:
    device = torch.device("cuda", 2)

    def synchronize(self) -> None:
        """Has nothing to do."""


@pytest.mark.parametrize("work_fails", [False, True])
def test_a_capture_that_fails_leaves_neither_torchs_allocator_nor_us_in_it(
    monkeypatch: pytest.MonkeyPatch, work_fails: bool
) -> None:
    ended: list[tuple[int, object]] = []

    def end(*place: Any) -> None:
        ended.append(place)

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Invalidated)
    monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)
    monkeypatch.setattr(torch.cuda, "stream", contextlib.nullcontext)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", end, raising=False)

    def work() -> None:
        if work_fails:
            raise ValueError("no such kernel")

    stream: Any = Stream()
    for _ in range(2):
        with pytest.raises(ValueError if work_fails else RuntimeError):
            capture(stream, work, "pool")
    assert ended == [(2, "pool")] * 2 and gc.isenabled()
