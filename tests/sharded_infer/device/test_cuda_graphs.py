"""Graphs are destroyed when they are let go, but never while one is captured."""

import gc
import threading
import weakref
from typing import Any

from sharded_infer.device import cuda_graphs
from sharded_infer.device.cuda_graphs import CapturedGraph


class Graph:
    """Stands in for torch's, which needs a card."""

    def __init__(self) -> None:
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1


def captured() -> tuple[CapturedGraph, "weakref.ref[Graph]"]:
    graph: Any = Graph()
    return CapturedGraph(graph), weakref.ref(graph)


def test_a_graph_is_replayed_until_it_is_let_go() -> None:
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
