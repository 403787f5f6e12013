"""Tensors of one request: layouts, and views with another one's numbers in any shape and order.

A chain of views is run on the places of its base's numbers, which tells those that it has.
"""

import operator
from collections.abc import Iterable, Sequence
from enum import Enum, auto
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from kernels.abi.passes import LAST_ROW, LAST_ROWS, POSITIONS
from kernels.sequences.passes import Memory
from sharded_infer.towers.lowering.constants import constant_of
from sharded_infer.towers.lowering.rewriting import COPIES, DIVISIONS, RESHAPES
from sharded_infer.towers.lowering.tensor_kinds import MOST_NUMBERS, kinds_and_sizes

_aten = torch.ops.aten
_VIEWS: Final = (
    *(_aten.transpose.int, _aten.permute.default, _aten.swapaxes.default, _aten.movedim.int),
    *(_aten.unsqueeze.default, _aten.squeeze.dim, _aten.squeeze.dims),
    *(_aten.select.int, _aten.slice.Tensor, operator.getitem),
    *(*RESHAPES, *COPIES, *DIVISIONS),
)


class Rows(Enum):
    """Rows of a tensor, without axes of size 1; L is a sequence's number of positions."""

    ONE = auto()  # [W]
    ALL = auto()  # [L, W]
    ALONG = auto()  # [L]
    PAIRS = auto()  # [L, L]


class Layout(NamedTuple):
    """Layout of a tensor; `lengths` are the sizes of L in the runs, None without one."""

    rows: Rows
    width: int
    lengths: tuple[int, ...] | None

    @property
    def memory(self) -> Memory:
        """A memory of such a tensor."""
        return Memory(
            POSITIONS if self.rows in (Rows.ALL, Rows.PAIRS) else 1,
            POSITIONS if self.rows in (Rows.ALONG, Rows.PAIRS) else self.width,
        )


class View(NamedTuple):
    """Places of a node's numbers among its base's, in each run; of a division, in each part."""

    base: Node
    places: tuple[Any, ...]


class Source(NamedTuple):
    """Rows and columns of a node's result, as `kernels.sequences.passes.Operand`."""

    base: Node
    column: int = 0
    row: int = 0


class Views:
    """Layouts and views of fp32 tensors with at least two axes.

    Args:
        inputs: of runs with several lengths, which no two sequences share.

    Attributes:
        kinds: dtypes and shapes in each run.
    """

    def __init__(self, program: GraphModule, inputs: Iterable[Sequence[Tensor]]) -> None:
        self._program = program
        seen = [kinds_and_sizes(program, run) for run in inputs]
        self.kinds = [kinds for kinds, _ in seen]
        self._sizes = [sizes for _, sizes in seen]
        self._found: dict[Node, View] = {}
        self._sources: dict[Node, Source] = {}

    def of(self, node: Node) -> View:
        """The base of a view; other nodes themselves."""
        if node not in self._found:
            self._found[node] = self._viewed(node) or View(node, self._own(node))
        return self._found[node]

    def whole(self, node: Node) -> Node:
        """The base of a view that has all its numbers, in order; other nodes themselves."""
        base, places = self.of(node)
        order = self.of(base).places
        is_whole = all(
            isinstance(some, Tensor) and torch.equal(some.flatten(), every.flatten())
            for some, every in zip(places, order, strict=True)
        )
        return base if is_whole else node

    def source(self, node: Node) -> Source:
        """The base of a view that a pass can read in place; other nodes themselves.

        Such views are some columns, the last row, and rows of a constant.
        """
        if node not in self._sources:
            self._sources[node] = self._source(node) or Source(node)
        return self._sources[node]

    def shapes(self, node: Node) -> list[torch.Size]:
        """A tensor's shape in each run; the empty one if it is none."""
        constant = constant_of(self._program, node)
        if constant is not None:
            return [constant.shape] * len(self.kinds)
        return [kinds[node][1] if node in kinds else torch.Size([0]) for kinds in self.kinds]

    def shape(self, node: Node) -> tuple[int | None, ...]:
        """A tensor's shape; None stands for a size that grows."""
        shapes = [kinds[node][1] for kinds in self.kinds]
        return tuple(
            sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*shapes, strict=True)
        )

    def layout(self, node: object) -> Layout | None:
        """Layout of an fp32 tensor; None for others."""
        if not isinstance(node, Node) or not all(node in kinds for kinds in self.kinds):
            return None
        found = [kinds[node] for kinds in self.kinds]
        shapes = [shape for _, shape in found]
        if any(dtype is not torch.float32 for dtype, _ in found):
            return None
        if len({len(shape) for shape in shapes}) != 1 or len(shapes[0]) < 2:
            return None
        *before, last = zip(*shapes, strict=True)
        grown = {sizes for sizes in (*before, last) if len(set(sizes)) > 1}
        large = [sizes for sizes in before if set(sizes) != {1}]
        if len(grown) > 1 or len(large) > 1 or any(sizes not in grown for sizes in large):
            return None
        lengths = grown.pop() if grown else None
        along = lengths is not None and last == lengths
        if large:
            return Layout(Rows.PAIRS if along else Rows.ALL, last[0], lengths)
        return Layout(Rows.ALONG if along else Rows.ONE, last[0], lengths)

    def _source(self, node: Node) -> Source | None:
        base, places = self.of(node)
        own, constant = self.layout(node), constant_of(self._program, base)
        if base is node or own is None:
            return None
        if constant is None:
            if self.layout(base) is None:
                return None
            if self.whole(node) is base:
                return Source(base)
        elif own.lengths is None or constant.shape[:-2].numel() != 1:
            return None
        parts = zip(places, self.shapes(base), strict=True)
        found = [_rows_of(some, shape, is_constant=constant is not None) for some, shape in parts]
        common = set.intersection(*found)
        return Source(base, *common.pop()) if common else None

    def _own(self, node: Node) -> tuple[Tensor, ...]:
        shapes = self.shapes(node)
        if any(shape.numel() > MOST_NUMBERS for shape in shapes):
            return tuple(torch.empty(0) for _ in shapes)
        return tuple(torch.arange(shape.numel()).view(shape) for shape in shapes)

    def _viewed(self, node: Node) -> View | None:
        target: Any = node.target
        if target not in _VIEWS or not isinstance(node.args[0], Node):
            return None
        whole = node.args[0]
        sizes = [one for one in node.all_input_nodes if one is not whole]
        if not self._can_be_viewed(whole) or any(
            one not in values for one in sizes for values in self._sizes
        ):
            return None
        base, places = self.of(whole)
        made = []
        for values, own in zip(self._sizes, places, strict=True):
            if isinstance(own, Tensor) and not own.numel():
                return None
            rest = map_arg((node.args[1:], node.kwargs), values.__getitem__)
            made.append(target(own, *rest[0], **rest[1]))
        return View(base, tuple(made))

    def _can_be_viewed(self, node: Node) -> bool:
        if node.target in DIVISIONS:
            return True
        constant = constant_of(self._program, node)
        if constant is not None:
            return constant.dtype is torch.float32 and constant.dim() > 1
        return all(
            node in kinds and kinds[node][0] is torch.float32 and len(kinds[node][1]) > 1
            for kinds in self.kinds
        )


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
