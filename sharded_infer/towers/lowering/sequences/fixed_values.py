"""Functions of positions and constants alone, computed for the longest sequence.

    order = arange(n); biases[clamp(order[:, None] - order, 0)]     n x n numbers of any sequence

Each operator here gives common positions the same numbers at any length, so that a shorter
sequence's numbers are the first ones of the longest's.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from math import prod
from typing import Any, Final

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from sharded_infer.towers.lowering.constants import constant_of
from sharded_infer.towers.lowering.rewriting import (
    AND,
    CLAMPS,
    COMPARISONS,
    NOT,
    OR,
    RESHAPES,
)
from sharded_infer.towers.lowering.sequences.symbolic_sizes import Symbol, SymbolicSizes
from sharded_infer.towers.lowering.tensor_kinds import Kind

_aten = torch.ops.aten
# Numbers of a value for the longest sequence.
_MOST_NUMBERS: Final = 2**20
_FILLED: Final = (_aten.full.default, _aten.zeros.default, _aten.ones.default)
_BY_POSITION: Final = (
    *(_aten.add.Tensor, _aten.sub.Tensor, _aten.rsub.Scalar, _aten.mul.Tensor, _aten.mul.Scalar),
    *(_aten.div.Tensor, _aten.neg.default, _aten.abs.default, _aten.pow.Tensor_Scalar),
    *(_aten.log.default, _aten.exp.default, _aten.sqrt.default, _aten.sin.default),
    *(_aten.cos.default, _aten.minimum.default, _aten.maximum.default, _aten.where.self),
    *(_aten.masked_fill.Scalar, *CLAMPS, *AND, *OR, *NOT, *chain(*COMPARISONS.values())),
    *(_aten.to.dtype, _aten._to_copy.default, _aten.clone.default, _aten.contiguous.default),
    *(_aten.unsqueeze.default, _aten.transpose.int, _aten.triu.default, _aten.tril.default),
)


class FixedValues:
    """The nodes that depend on one sequence's positions alone.

    Args:
        known: symbolic values; grow with the walk.
        kinds: of several runs.
        symbols: by the sizes that they have in these runs, the sequences.
    """

    def __init__(
        self,
        program: GraphModule,
        known: SymbolicSizes,
        kinds: Sequence[Mapping[Node, Kind]],
        symbols: Mapping[tuple[int, ...], Symbol],
    ) -> None:
        self._program, self._known = program, known
        self._kinds, self._symbols = kinds, symbols
        self.found: dict[Node, Symbol] = {}

    def learn(self, node: Node) -> None:
        """Classifies a node; nodes before it have been."""
        symbol = self._symbol_of(node)
        if symbol is None or not self._grows_with(node, symbol):
            return
        if prod(self._longest_shape(node)) <= _MOST_NUMBERS:
            self.found[node] = symbol

    def axes(self, node: Node) -> list[int]:
        """The axes that grow with the sequence."""
        return [axis for axis in range(self._rank(node)) if self.symbol(node, axis) is not None]

    def symbol(self, node: object, axis: object) -> Symbol | None:
        """The sequence whose positions a tensor's axis all has."""
        if not isinstance(node, Node) or not all(node in kinds for kinds in self._kinds):
            return None
        rank = self._rank(node)
        if not isinstance(axis, int) or not -rank <= axis < rank:
            return None
        return self._symbols.get(tuple(kinds[node][1][axis] for kinds in self._kinds))

    def at_longest(self, node: Node) -> Tensor:
        """The value for the longest sequence."""
        constant = constant_of(self._program, node)
        if constant is not None:
            return constant.detach()
        shape, dtype = self._longest_shape(node), self._kinds[0][node][0]
        if node not in self.found:
            return torch.full(shape, self._known.of(node).constant, dtype=dtype)  # type: ignore[union-attr]
        target: Any = node.target
        if target is _aten.arange.default:
            return torch.arange(self.found[node].longest)
        if target in _FILLED:
            sizes = {_aten.zeros.default: 0, _aten.ones.default: 1}
            return torch.full(shape, sizes.get(target, node.args[-1]), dtype=dtype)  # type: ignore[arg-type]
        source: Any = node.args[0]
        if target is _aten.slice.Tensor:
            length = self.found[node].longest
            return self.at_longest(source).narrow(node.args[1], 0, length)  # type: ignore[arg-type]
        if target in RESHAPES:
            return self.at_longest(source).reshape(shape)
        if target is _aten.expand.default:
            return self.at_longest(source).expand(shape)
        found: Tensor = target(
            *map_arg(node.args, self.at_longest), **map_arg(node.kwargs, self.at_longest)
        )
        return found

    def _symbol_of(self, node: Node) -> Symbol | None:
        target: Any = node.target
        if target is _aten.arange.default:
            found = self._known.of(node)
            return None if found is None else found.symbol
        if target in _FILLED:
            if isinstance(node.args[-1], Node):
                return None
            return self._one({self.symbol(node, axis) for axis in self.axes(node)})
        if target is _aten.slice.Tensor:
            return self._symbol_of_first(node)
        if target in (*RESHAPES, _aten.expand.default):
            source: Any = node.args[0]
            return self.found.get(source) if self._grows_alike(source, node) else None
        # Indices may count from the end, which only a constant has where it was.
        reads = index_of(node) is not None and constant_of(self._program, node.args[0]) is not None
        if target not in _BY_POSITION and not reads:
            return None
        sources = [one for one in node.all_input_nodes if constant_of(self._program, one) is None]
        # Ignores tensors that have the same number everywhere.
        symbols = {
            self.found.get(one) for one in sources if one in self.found or not self._is_number(one)
        }
        return self._one(symbols)

    def _symbol_of_first(self, node: Node) -> Symbol | None:
        """Of a slice: the sequence for whose positions it has a constant's first ones."""
        source, *bounds = node.args
        end = self._known.of(bounds[-1]) if len(bounds) == 3 and bounds[1] == 0 else None
        if end is None or end[:3] != (0, 1, 0) or end.symbol is None:
            return None
        constant = constant_of(self._program, source)
        if constant is None:
            return end.symbol if self.found.get(source) == end.symbol else None  # type: ignore[arg-type]
        return end.symbol if constant.shape[bounds[0]] >= end.symbol.longest else None  # type: ignore[index]

    def _grows_with(self, node: Node, symbol: Symbol) -> bool:
        """True if each axis has all positions of the sequence, or a size of its own."""
        for axis in range(self._rank(node)):
            found = self.symbol(node, axis)
            sizes = {kinds[node][1][axis] for kinds in self._kinds}
            if found != symbol and (found is not None or len(sizes) > 1):
                return False
        return True

    def _grows_alike(self, source: Node, node: Node) -> bool:
        """True if the growing axes are the same last ones of both."""
        grown = self.axes(source)
        if source not in self.found or not grown:
            return False
        behind = self._rank(source) - grown[0]
        shapes = [self._longest_shape(one)[-behind:] for one in (source, node)]
        moved = self._rank(node) - self._rank(source)
        return shapes[0] == shapes[1] and self.axes(node) == [axis + moved for axis in grown]

    def _is_number(self, node: Node) -> bool:
        number = self._known.of(node)
        return number is not None and number.symbol is None and node in self._kinds[0]

    @staticmethod
    def _one(symbols: set[Symbol | None]) -> Symbol | None:
        return symbols.pop() if len(symbols) == 1 else None

    def _rank(self, node: Node) -> int:
        return len(self._kinds[0][node][1]) if node in self._kinds[0] else 0

    def _longest_shape(self, node: Node) -> list[int]:
        symbols = [self.symbol(node, axis) for axis in range(self._rank(node))]
        shape = self._kinds[0][node][1]
        return [
            size if symbol is None else symbol.longest
            for size, symbol in zip(shape, symbols, strict=True)
        ]


def index_of(node: Node) -> object:
    """The rows that a node reads: those of a constant, where its first argument is one."""
    if node.target is _aten.embedding.default:
        return node.args[1]
    if node.target is _aten.index_select.default and node.args[1] == 0:
        return node.args[2]
    if node.target is _aten.index.Tensor and len(node.args[1]) == 1:  # type: ignore[arg-type]
        return node.args[1][0]  # type: ignore[index]
    return None
