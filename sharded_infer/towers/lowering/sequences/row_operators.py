"""Operators of a program that compute each row by itself, and their columns."""

import operator
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from kernels.abi.row_steps import StepKind
from sharded_infer.towers.lowering.constants import constant_of
from sharded_infer.towers.lowering.packing import linear_of
from sharded_infer.towers.lowering.tensor_kinds import Kind

_aten = torch.ops.aten
_TWO: Final = {
    _aten.add.Tensor: StepKind.SUM,
    _aten.sub.Tensor: StepKind.DIFFERENCE,
    _aten.mul.Tensor: StepKind.PRODUCT,
}
_ONE: Final = {
    _aten.relu.default: StepKind.RELU,
    _aten.sigmoid.default: StepKind.SIGMOID,
    _aten.silu.default: StepKind.SILU,
    _aten.gelu.default: StepKind.GELU,
}
# Columns of a sum: wider rows leave no room in the cache for intermediate rows.
_MOST_SUMMED: Final = 1024
# Operators that choose columns, and the index of their axis argument; 0: all columns.
_CHOOSING: Final = {
    _aten.chunk.default: 2,
    _aten.split.Tensor: 2,
    _aten.split.sizes: 2,
    _aten.split_with_sizes.default: 2,
    _aten.slice.Tensor: 1,
    _aten.narrow.default: 1,
    _aten.clone.default: 0,
    _aten.contiguous.default: 0,
    _aten.dropout.default: 0,
}


class RowColumns(NamedTuple):
    """Columns of a node's result."""

    node: Node
    first: int
    width: int


class RowOperator(NamedTuple):
    """A node's computation of each row; see `kernels.sequences.row_step.RowStep`.

    `relu`: a ReLU follows a linear one.
    """

    kind: StepKind
    sources: tuple[RowColumns | Tensor, ...]
    weight: Tensor | None = None
    bias: Tensor | None = None
    epsilon: float = 0.0
    relu: bool = False


class RowOperators:
    """The operators on rows of a program with packed products.

    Args:
        kinds: of runs with inputs of several sizes.

    Attributes:
        found: computation of each of them, in the graph's order.
        views: nodes that choose columns, or divide them.
        chosen: of the former, their columns.
    """

    def __init__(self, program: GraphModule, kinds: Sequence[Mapping[Node, Kind]]) -> None:
        self._program, self._kinds = program, kinds
        self.found: dict[Node, RowOperator] = {}
        self.views: set[Node] = set()
        self.chosen: dict[Node, RowColumns] = {}
        for node in program.graph.nodes:
            if self.shape(node) is None:
                continue
            found = (
                self._linear(node)
                or self._norm(node)
                or self._sum(node)
                or self._elementwise(node)
                or self._joined(node)
            )
            if found is not None:
                self.found[node] = found
                continue
            columns = self._chosen(node)
            if columns is not None:
                self.chosen[node] = columns
                self.views |= {node, *node.args[:1]} if node.target is operator.getitem else {node}

    def shape(self, node: object) -> torch.Size | None:
        """Shape of fp32 rows `[..., width]` with the same width in every run; else None."""
        if not isinstance(node, Node):
            return None
        found = [kinds.get(node, (None, torch.Size())) for kinds in self._kinds]
        if any(dtype is not torch.float32 or len(shape) < 2 for dtype, shape in found):
            return None
        shapes = [shape for _, shape in found]
        return shapes[0] if len({shape[-1] for shape in shapes}) == 1 else None

    def rows(self, node: Node) -> tuple[torch.Size, ...]:
        """Sizes of all axes but the columns', in each run."""
        return tuple(kinds[node][1][:-1] for kinds in self._kinds)

    def columns(self, argument: object) -> RowColumns | None:
        """The columns of a node's result; of another node, if it chooses from its result."""
        shape = self.shape(argument)
        if shape is None or not isinstance(argument, Node):
            return None
        return self.chosen.get(argument, RowColumns(argument, 0, shape[-1]))

    def _linear(self, node: Node) -> RowOperator | None:
        linear = linear_of(self._program, node)
        source = None if linear is None else self.columns(node.args[0])
        if linear is None or source is None:
            return None
        weight, bias, relu = linear
        return RowOperator(StepKind.LINEAR, (source,), weight, bias, relu=relu)

    def _norm(self, node: Node) -> RowOperator | None:
        if node.target is not _aten.layer_norm.default or node.kwargs:
            return None
        arguments: tuple[Any, ...] = (*node.args, None, None, 1e-5)
        source, shape, weight, bias, epsilon = arguments[:5]
        columns = self.columns(source)
        if columns is None or list(shape) != [columns.width]:
            return None
        held = {one: constant_of(self._program, one) for one in (weight, bias) if one is not None}
        if None in held.values():
            return None
        found = held.get(weight), held.get(bias)
        return RowOperator(StepKind.NORM, (columns,), *found, float(epsilon))

    def _sum(self, node: Node) -> RowOperator | None:
        """A sum of a row's columns: a product with ones."""
        if node.target is not _aten.sum.dim_IntList or node.kwargs or len(node.args) != 3:
            return None
        source, axes, keeps = node.args
        columns, shape = self.columns(source), self.shape(source) or torch.Size()
        if columns is None or not keeps or axes not in ([-1], [len(shape) - 1]):
            return None
        if columns.width > _MOST_SUMMED:
            return None
        return RowOperator(StepKind.LINEAR, (columns,), torch.ones(1, columns.width))

    def _elementwise(self, node: Node) -> RowOperator | None:
        target: Any = node.target
        kind = _ONE.get(target, _TWO.get(target))
        if kind is None or node.kwargs:
            return None
        sources = tuple(self._operand(one, node) for one in node.args)
        return None if None in sources else RowOperator(kind, sources)  # type: ignore[arg-type]

    def _joined(self, node: Node) -> RowOperator | None:
        if node.target is not _aten.cat.default or node.kwargs:
            return None
        parts, axis = (*node.args, 0)[:2]
        shape = self.shape(node) or torch.Size()
        sources = tuple(map(self.columns, parts))  # type: ignore[arg-type]
        rows = {(self.shape(one) or torch.Size())[:-1] for one in parts}  # type: ignore[union-attr]
        if axis not in (-1, len(shape) - 1) or rows != {shape[:-1]} or None in sources:
            return None
        return RowOperator(StepKind.JOINED, sources)  # type: ignore[arg-type]

    def _operand(self, argument: object, node: Node) -> RowColumns | Tensor | None:
        """A node's rows and columns, or a constant for each row; None: neither."""
        shape = self.shape(node) or torch.Size()
        if isinstance(argument, int | float) and not isinstance(argument, bool):
            return torch.full(shape[-1:], float(argument))
        constant = constant_of(self._program, argument)
        if constant is not None:
            fits = constant.dtype is torch.float32 and constant.dim() <= 1
            return constant.detach().expand(shape[-1:]) if fits else None
        return self.columns(argument) if self.shape(argument) == shape else None

    def _chosen(self, node: Node) -> RowColumns | None:
        """Columns that an operator chooses from another's result, side by side."""
        call, number = node, None
        if node.target is operator.getitem and isinstance(node.args[0], Node):
            call, number = node.args  # type: ignore[assignment]
        target: Any = call.target
        axis = _CHOOSING.get(target)
        if axis is None or call.kwargs or len(call.all_input_nodes) != 1:
            return None
        if target is _aten.dropout.default and call.args[2] is not False:
            return None
        source, shape = self.columns(call.args[0]), self.shape(node)
        if source is None or shape is None:
            return None
        if axis and (*call.args, 0)[axis] not in (-1, len(shape) - 1):
            return None
        # Called on the columns' numbers, it returns the chosen ones.
        numbers = torch.arange(source.width).reshape((1,) * (len(shape) - 1) + (-1,))
        made = target(numbers, *call.args[1:])
        chosen = (made if number is None else made[number]).flatten()
        width, first = shape[-1], int(chosen[0])
        if not torch.equal(chosen, torch.arange(first, first + width)):
            return None
        return RowColumns(source.node, source.first + first, width)
