"""A plan under construction: rectangles of tables on ranks, with their costs."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sharded_infer.planning.cost_model import CostModel
from sharded_infer.planning.search.cost_arrays import Floats, Integers, TableCosts
from sharded_infer.planning.topology import Topology


@dataclass(frozen=True, slots=True)
class Rectangle:
    """A part of a table; ranges are half-open."""

    table: int
    first_row: int
    last_row: int
    first_column: int
    last_column: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.last_row - self.first_row

    @property
    def columns(self) -> int:
        """Number of columns."""
        return self.last_column - self.first_column


class Packing:
    """Rectangles on ranks. Every change updates the loads. Arrays are fp64.

    Attributes:
        rectangles: the items; an item's index never changes.
        seconds: `[classes, items]`, cost of each item on each class.
        bytes: `[items]`.
        share: `[items]`, an item's part of its table's ids.
        busy: `[ranks]`, seconds of each rank.
        held: `[ranks]`, bytes of each rank.
        capacity: `[ranks]`, infinity where there is no limit.
        items: of each rank.
        most_moved_bytes: moved bytes allowed for one change; infinity for a new plan.
    """

    def __init__(self, load: CostModel, costs: TableCosts) -> None:
        devices = load.topology.devices
        self.load = load
        self.costs = costs
        self.rectangles: list[Rectangle] = []
        self.seconds: Floats = np.empty((len(costs.classes), 0))
        self.bytes: Floats = np.empty(0)
        self.share: Floats = np.empty(0)
        self.busy: Floats = np.array([load.launch_seconds(device) for device in devices])
        self.held: Floats = np.zeros(len(devices))
        self.capacity: Floats = capacities(load.topology)
        self.items: list[list[int]] = [[] for _ in devices]
        self.log: list[str] = []
        self.most_moved_bytes = float("inf")

    def add(self, rectangles: Sequence[Rectangle]) -> Integers:
        """Add rectangles as unplaced items; return their indices."""
        tables, _, columns = _columns_of(rectangles)
        share = self._share(rectangles)
        seconds = np.stack([c.seconds(tables, share, columns) for c in self.costs.classes])
        start = len(self.rectangles)
        self.rectangles.extend(rectangles)
        self.seconds = np.concatenate([self.seconds, seconds], axis=1)
        self.bytes = np.concatenate([self.bytes, self.bytes_of(rectangles)])
        self.share = np.concatenate([self.share, share])
        return np.arange(start, len(self.rectangles))

    def cost_of(self, rectangles: Sequence[Rectangle]) -> Floats:
        """Seconds of rectangles, each on its fastest class."""
        tables, _, columns = _columns_of(rectangles)
        share = self._share(rectangles)
        seconds = [c.seconds(tables, share, columns) for c in self.costs.classes]
        fastest: Floats = np.stack(seconds).min(axis=0)
        return fastest

    def bytes_of(self, rectangles: Sequence[Rectangle]) -> Floats:
        """Bytes of rectangles."""
        return self.costs.bytes(*_columns_of(rectangles))

    def _share(self, rectangles: Sequence[Rectangle]) -> Floats:
        tables, rows, _ = _columns_of(rectangles)
        share = rows / self.costs.rows[tables]
        for index in np.flatnonzero(share < 1).tolist():
            rectangle = rectangles[index]
            name = self.costs.names[rectangle.table]
            share[index] = self.load.access_share(name, rectangle.first_row, rectangle.last_row)
        return share

    def seconds_on(self, items: Integers | Sequence[int], rank: int) -> Floats:
        """Costs of items on a rank."""
        found: Floats = self.seconds[self.costs.class_of_rank[rank]][items]
        return found

    def place(self, item: int, rank: int) -> None:
        """Place an unplaced item on a rank."""
        self.items[rank].append(item)
        self.busy[rank] += self.seconds[self.costs.class_of_rank[rank], item]
        self.held[rank] += self.bytes[item]

    def remove(self, item: int, rank: int) -> None:
        """Take an item off its rank."""
        self.items[rank].remove(item)
        self.busy[rank] -= self.seconds[self.costs.class_of_rank[rank], item]
        self.held[rank] -= self.bytes[item]

    def copy(self) -> "Packing":
        """An independent copy."""
        twin = copy.copy(self)
        twin.rectangles = list(self.rectangles)
        twin.busy, twin.held = self.busy.copy(), self.held.copy()
        twin.items = [list(items) for items in self.items]
        twin.log = list(self.log)
        return twin

    def name(self, item: int) -> str:
        """The name of an item's table."""
        return self.costs.names[self.rectangles[item].table]


def capacities(topology: Topology) -> Floats:
    """Bytes that each rank may hold, infinity where there is no limit: fp64 `[ranks]`."""
    limits: Floats = np.array(
        [np.inf if d.memory_bytes is None else d.memory_bytes for d in topology.devices]
    )
    return limits


def _columns_of(rectangles: Sequence[Rectangle]) -> tuple[Integers, Floats, Floats]:
    return (
        np.array([r.table for r in rectangles], np.int64),
        np.array([r.rows for r in rectangles], np.float64),
        np.array([r.columns for r in rectangles], np.float64),
    )
