"""Views that passes read: some columns, the last row, rows of a constant."""

from collections.abc import Container
from typing import Any, Final, NamedTuple

import torch
from torch.fx import GraphModule, Node

from kernels.sequences.passes import LAST_ROW, LAST_ROWS
from sharded_infer.towers.lowering.constants import constant_of
from sharded_infer.towers.lowering.joined.pair_functions import RESHAPING
from sharded_infer.towers.lowering.sequences.request_layouts import RequestLayouts, Rows
from sharded_infer.towers.lowering.sequences.row_operators import RowOperators

_SLICE: Final = torch.ops.aten.slice.Tensor
# Operators that keep a tensor's numbers if they keep their count; a choice, where the axis has size
# 1.
SAME_NUMBERS: Final = (*RESHAPING, torch.ops.aten.select.int)
_LAST: Final = {Rows.ALL: Rows.ONE, Rows.PAIRS: Rows.ALONG}


class Source(NamedTuple):
    """Rows and columns of a node's result, as `kernels.sequences.passes.Operand`."""

    base: Node
    column: int = 0
    row: int = 0


class PassSources:
    """Bases of a program's views.

    `rows` knows the views of columns; `results` are nodes to treat as no views.
    """

    def __init__(
        self,
        program: GraphModule,
        layouts: RequestLayouts,
        rows: RowOperators,
        results: Container[Node],
    ) -> None:
        self._program, self._layouts, self._rows = program, layouts, rows
        self._results = results
        self._found: dict[Node, Source] = {}

    def of(self, node: Node) -> Source:
        """The base of a view; other nodes themselves."""
        if node not in self._found:
            self._found[node] = self._view(node) or Source(node)
        return self._found[node]

    def divides(self, node: Node) -> bool:
        """True if a node's result is several tensors of another's columns."""
        return node in self._rows.views and self._layouts.of(node) is None

    def _view(self, node: Node) -> Source | None:
        if node in self._results or self._layouts.of(node) is None:
            return None
        columns = self._rows.columns(node)
        if columns is not None and columns.node is not node:
            source = self.of(columns.node)
            return source._replace(column=source.column + columns.first)
        if node.op != "call_function" or not node.args or not isinstance(node.args[0], Node):
            return None
        whole = node.args[0]
        source = self.of(whole)
        if constant_of(self._program, source.base) is not None:
            return self._of_constant(node, whole, source)
        if self._layouts.of(whole) is None:
            return None
        if node.target in SAME_NUMBERS:
            return source if self._layouts.is_same(node, whole) else None
        return self._last_row(node, whole, source)

    def _last_row(self, node: Node, whole: Node, source: Source) -> Source | None:
        if node.target is not _SLICE or node.args[2] != -1 or source.row:
            return None
        own, of_whole, held = map(self._layouts.of, (node, whole, source.base))
        if own is None or of_whole is None or held is None or held.rows is not of_whole.rows:
            return None
        is_last = own.rows is _LAST.get(of_whole.rows)
        return source._replace(row=LAST_ROW) if is_last else None

    def _of_constant(self, node: Node, whole: Node, source: Source) -> Source | None:
        """The first positions of `[n, W]`, `[1, n, W]` or `[n, n]`, or its last ones."""
        constant = constant_of(self._program, source.base)
        if constant is None or constant.dtype is not torch.float32:
            return None
        before = constant.dim() - 2
        if before not in (0, 1) or (before and len(constant) != 1):
            return None
        if node.target in RESHAPING and whole is not source.base:
            return source if self._layouts.is_same(node, whole) else None
        if node.target is not _SLICE or len(node.args) != 4:
            return None
        axis: Any
        _, axis, begin, end = node.args
        if axis not in (before, before + 1) or self._layouts.shape(node)[axis] is not None:
            return None
        if begin in (0, None):
            return source
        # A part that ends with the constant and grows has its last rows.
        is_last = axis == before and whole is source.base and end == constant.shape[before]
        return source._replace(row=LAST_ROWS) if is_last else None
