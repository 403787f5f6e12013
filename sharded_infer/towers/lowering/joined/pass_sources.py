"""Views that passes read: some columns, the last row, rows of a constant."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from kernels.sequences.passes import LAST_ROW, LAST_ROWS
from sharded_infer.towers.lowering.constants import constant_of
from sharded_infer.towers.lowering.sequences.views import Views


class Source(NamedTuple):
    """Rows and columns of a node's result, as `kernels.sequences.passes.Operand`."""

    base: Node
    column: int = 0
    row: int = 0


class PassSources:
    """Bases of a program's views, as passes can read them."""

    def __init__(self, program: GraphModule, views: Views) -> None:
        self._program, self._views = program, views
        self._found: dict[Node, Source] = {}

    def of(self, node: Node) -> Source:
        """The base of a view; other nodes themselves."""
        if node not in self._found:
            self._found[node] = self._source(node) or Source(node)
        return self._found[node]

    def _source(self, node: Node) -> Source | None:
        base, places = self._views.of(node)
        own, constant = self._views.layout(node), constant_of(self._program, base)
        if base is node or own is None:
            return None
        if constant is None:
            if self._views.layout(base) is None:
                return None
            if self._views.whole(node) is base:
                return Source(base)
        elif own.lengths is None or constant.shape[:-2].numel() != 1:
            return None
        parts = zip(places, self._views.shapes(base), strict=True)
        found = [_rows_of(some, shape, is_constant=constant is not None) for some, shape in parts]
        common = set.intersection(*found)
        return Source(base, *common.pop()) if common else None


def _rows_of(places: Tensor, shape: torch.Size, *, is_constant: bool) -> set[tuple[int, int]]:
    """First column and row of places side by side: all rows, the last, or those of a constant."""
    rows, width = places.reshape(-1, places.shape[-1]), shape[-1]
    count = shape.numel() // width
    begin, column = divmod(int(rows[0, 0]), width)
    order = torch.arange(begin, begin + len(rows)).unsqueeze(1) * width
    beside = torch.arange(column, column + rows.shape[1])
    if int(beside[-1]) >= width or not torch.equal(rows, order + beside):
        return set()
    found: set[tuple[int, int]] = set()
    if not begin and (is_constant or len(rows) == count):
        found.add((column, 0))
    # A constant as long as one run is both its first rows and its last ones.
    if begin + len(rows) == count and (is_constant or len(rows) == 1):
        found.add((column, LAST_ROWS if is_constant else LAST_ROW))
    return found
