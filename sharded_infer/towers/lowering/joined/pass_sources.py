"""Views that passes read: some columns, the last row, rows of a constant."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from kernels.sequences.passes import LAST_ROW, LAST_ROWS
from sharded_infer.towers.lowering.constants import constant_of
from sharded_infer.towers.lowering.rewriting import DIVISIONS
from sharded_infer.towers.lowering.sequences.request_layouts import RequestLayouts
from sharded_infer.towers.lowering.sequences.views import Views


class Source(NamedTuple):
    """Rows and columns of a node's result, as `kernels.sequences.passes.Operand`."""

    base: Node
    column: int = 0
    row: int = 0


class PassSources:
    """Bases of a program's views, as passes can read them."""

    def __init__(self, program: GraphModule, views: Views, layouts: RequestLayouts) -> None:
        self._program, self._views, self._layouts = program, views, layouts
        self._found: dict[Node, Source] = {}

    def of(self, node: Node) -> Source:
        """The base of a view; other nodes themselves."""
        if node not in self._found:
            self._found[node] = self._source(node) or Source(node)
        return self._found[node]

    @staticmethod
    def divides(node: Node) -> bool:
        """True if a node's result is several tensors of another's columns."""
        return node.target in DIVISIONS

    def _source(self, node: Node) -> Source | None:
        base, places = self._views.of(node)
        own, constant = self._layouts.of(node), constant_of(self._program, base)
        if base is node or own is None:
            return None
        if constant is None:
            if self._layouts.of(base) is None:
                return None
            if self._views.whole(node) is base:
                return Source(base)
        elif own.lengths is None or constant.shape[:-2].numel() != 1:
            return None
        shapes = self._views.shapes(base)
        parts = zip(places, shapes, strict=True)
        found = {_rows_of(some, shape, is_constant=constant is not None) for some, shape in parts}
        place = found.pop()
        return None if place is None or found else Source(base, *place)


def _rows_of(places: Tensor, shape: torch.Size, *, is_constant: bool) -> tuple[int, int] | None:
    """First column and row of places side by side: all rows, the last, or those of a constant."""
    rows, width = places.reshape(-1, places.shape[-1]), shape[-1]
    count = shape.numel() // width
    begin, column = divmod(int(rows[0, 0]), width)
    order = torch.arange(begin, begin + len(rows)).unsqueeze(1) * width
    if not torch.equal(rows, order + torch.arange(column, column + rows.shape[1])):
        return None
    if column + rows.shape[1] > width:
        return None
    if not begin and (is_constant or len(rows) == count):
        return column, 0
    if begin + len(rows) < count:
        return None
    if is_constant:
        return column, LAST_ROWS
    return (column, LAST_ROW) if len(rows) == 1 else None
