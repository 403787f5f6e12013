"""Values of a split program: by request, by pair, or part of each."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from torch.fx import Node


class Run(NamedTuple):
    """Adjacent positions of an axis that are all by request or all by pair."""

    by_request: bool
    size: int


@dataclass(frozen=True, slots=True, eq=False)
class Invariant:
    """A constant, a number or a value computed from them: either graph can have it."""


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A value with one row per request or per pair, by a node of that graph."""

    by_request: bool
    node: Node


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """A value whose positions along one axis are by request or by pair.

    Attributes:
        dim: the axis, at least 1.
        request: node of the graph by request: its positions, in order.
        pair: node of the graph by pair, likewise.
        runs: layout of both along the axis.
    """

    dim: int
    request: Node
    pair: Node
    runs: tuple[Run, ...]

    def of(self, by_request: bool) -> Node:
        """The node of one of the graphs."""
        return self.request if by_request else self.pair


# A tuple: the results of an operator with several.
Known: TypeAlias = Invariant | Value | Parts | tuple["Known", ...]


def joined_runs(runs: Iterable[Run]) -> tuple[Run, ...]:
    """The same positions with neighbours of one kind joined, and no empty runs."""
    joined: list[Run] = []
    for run in runs:
        if joined and joined[-1].by_request == run.by_request:
            joined[-1] = Run(run.by_request, joined[-1].size + run.size)
        elif run.size:
            joined.append(run)
    return tuple(joined)


def positions_of(runs: Iterable[Run], by_request: bool) -> list[int]:
    """Positions along the whole axis that are by request, or by pair."""
    positions: list[int] = []
    start = 0
    for run in runs:
        if run.by_request == by_request:
            positions += range(start, start + run.size)
        start += run.size
    return positions
