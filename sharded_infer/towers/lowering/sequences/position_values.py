"""Values that depend on one sequence's number of positions alone, found by running them.

    arange(n) >= lengths                                  false, for each n
    biases[clamp(arange(n)[:, None] - arange(n), 0)]      the first n x n of the longest sequence's

Without padding, a length is the number of positions n.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from sharded_infer.towers.lowering.constants import constant_of
from sharded_infer.towers.lowering.tensor_kinds import MOST_NUMBERS, Kind

_aten = torch.ops.aten
# Operators that read only the shape of an argument, and its place.
_SHAPE_READERS: Final[Mapping[Any, int]] = {
    **dict.fromkeys((_aten.sym_size.int, _aten.zeros_like.default, _aten.ones_like.default), 0),
    **dict.fromkeys((_aten.expand_as.default, _aten.view_as.default), 1),
}
# Numbers that are computed in the time of an operator's call.
_NUMBERS_OF_A_CALL: Final = 2**10
# Numbers of a value for all lengths together; beyond, it is run for some lengths alone.
_MOST_OF_ALL_LENGTHS: Final = 2**28
# Numbers of all values together; what would take more stays as it is.
_MOST_TOGETHER: Final = 2**32
# Between the numbers inside a vector and those at its end, which operators compute otherwise.
_ROUNDED: Final = 1e-6


class Symbol(NamedTuple):
    """A sequence's number of positions, from `shortest` to `longest`."""

    number: int
    longest: int
    shortest: int = 1


class LongestPart(NamedTuple):
    """A value of which each number of positions has the first ones, or the last ones."""

    longest: Tensor
    is_last: bool


class PositionValues:
    """The nodes of a program that have such values.

    Args:
        kinds: of runs of several lengths, among them the shortest; the last is the longest.
        symbols: by the sizes that they have in these runs, the sequences.
        lengths: inputs with a sequence's lengths.

    Attributes:
        found: the nodes, in the graph's order, and their sequence; None: they have the same value
            for any.
    """

    def __init__(
        self,
        program: GraphModule,
        kinds: Sequence[dict[Node, Kind]],
        symbols: Mapping[tuple[int, ...], Symbol],
        lengths: Mapping[Node, Symbol],
    ) -> None:
        self._program, self.kinds, self._symbols = program, kinds, symbols
        self._left = _MOST_TOGETHER
        self.found: dict[Node, Symbol | None] = dict(lengths)
        for node in program.graph.nodes:
            symbols_of = self._symbols_of(node)
            if symbols_of is not None and len(symbols_of) <= 1:
                self.found[node] = next(iter(symbols_of), None)

    def symbol(self, node: object, axis: object) -> Symbol | None:
        """The sequence whose positions a tensor's axis all has."""
        if not isinstance(node, Node) or not all(node in kinds for kinds in self.kinds):
            return None
        rank = len(self.kinds[0][node][1])
        if not isinstance(axis, int) or not -rank <= axis < rank:
            return None
        return self._symbols.get(tuple(kinds[node][1][axis] for kinds in self.kinds))

    def axes(self, node: Node) -> list[int]:
        """The axes that grow with a sequence."""
        rank = len(self.kinds[0][node][1]) if node in self.kinds[0] else 0
        return [axis for axis in range(rank) if self.symbol(node, axis) is not None]

    def holds(self, node: object, check: Callable[[Any, int], bool]) -> bool:
        """True if a node's value passes a check for each number of positions.

        A value of many numbers is run for some of them: the shortest, the longest, and others.
        """
        if not isinstance(node, Node) or node not in self.found or node.op == "get_attr":
            return False
        order, symbol = self._order(node), self.found[node]
        kinds = self.kinds[-1]
        counts = [kinds[one][1].numel() if one in kinds else 1 for one in order]
        if max(counts) > MOST_NUMBERS:
            return False
        numbers = sum(counts) + len(order) * _NUMBERS_OF_A_CALL
        lengths = [1]
        if symbol is not None:
            lengths = [symbol.longest, *range(symbol.shortest, symbol.longest)]
        if numbers * len(lengths) > _MOST_OF_ALL_LENGTHS:
            lengths = _some_of(lengths)
        try:
            for n in lengths:
                self._left -= numbers
                if self._left < 0 or not check(self._run(order, n), n):
                    return False
        except Exception:
            # A length that the tower does not take: an error that only requests report.
            return False
        return True

    def are_equal(self, node: Node, other: object) -> bool:
        """True if two nodes have the same value for each number of positions."""
        if not isinstance(other, Node) or other not in self.found:
            return False
        order = self._order(other)
        return self.holds(node, lambda value, n: torch.equal(value, self._run(order, n)))

    def part_of_longest(self, node: Node) -> LongestPart | None:
        """The value for the longest sequence, if others have its first positions, or its last."""
        for is_last in (False, True):
            found = self._part_of_longest(node, is_last=is_last)
            if found is not None:
                return found
        return None

    def _part_of_longest(self, node: Node, *, is_last: bool) -> LongestPart | None:
        axes, longest = self.axes(node), list[Tensor]()

        def is_part(value: Tensor, n: int) -> bool:
            # The longest comes first.
            if not longest:
                longest.append(value)
            part = longest[0]
            for axis in axes:
                part = part.narrow(axis, part.shape[axis] - n if is_last else 0, n)
            return _agree(value, part)

        is_found = bool(axes) and self.holds(node, is_part)
        return LongestPart(longest[0], is_last) if is_found else None

    def _symbols_of(self, node: Node) -> set[Symbol] | None:
        """The sequences that a node's value depends on; None if it depends on more."""
        if node.op != "call_function":
            return set() if constant_of(self._program, node) is not None else None
        shaped = _SHAPE_READERS.get(node.target)
        symbols: set[Symbol | None] = set()
        for one in node.all_input_nodes:
            if one in self.found:
                symbols.add(self.found[one])
            elif shaped is not None and one is node.args[shaped] and self._has_known_shape(one):
                symbols |= {self.symbol(one, axis) for axis in self.axes(one)}
            else:
                return None
        return {symbol for symbol in symbols if symbol is not None}

    def _has_known_shape(self, node: Node) -> bool:
        """True if each axis has all positions of a sequence, or a size of its own."""
        if not all(node in kinds for kinds in self.kinds):
            return False
        shapes = [kinds[node][1] for kinds in self.kinds]
        return len({len(shape) for shape in shapes}) == 1 and all(
            len(set(sizes)) == 1 or sizes in self._symbols for sizes in zip(*shapes, strict=True)
        )

    def _order(self, node: Node) -> list[Node]:
        """The nodes that a value is computed from, in the graph's order, and the node itself."""
        needed, waiting = {node}, [node]
        while waiting:
            more = [one for one in waiting.pop().all_input_nodes if one in self.found]
            waiting += [one for one in more if one not in needed]
            needed.update(more)
        return [one for one in self.found if one in needed]

    def _run(self, order: Sequence[Node], positions: int) -> Any:
        """The last node's value for a number of positions."""
        values: dict[Node, Any] = {}

        def value(node: Node) -> Any:
            return values[node] if node in values else self._of_shape(node, positions)

        for node in order:
            target: Any = node.target
            constant = constant_of(self._program, node)
            if node.op == "placeholder":
                values[node] = torch.tensor([positions])
            elif constant is not None:
                values[node] = constant.detach()
            else:
                values[node] = target(*map_arg(node.args, value), **map_arg(node.kwargs, value))
        return values[order[-1]]

    def _of_shape(self, node: Node, positions: int) -> Tensor:
        """A tensor of which only the shape and the dtype are read."""
        dtype, shape = self.kinds[-1][node]
        grown = self.axes(node)
        sizes = [positions if axis in grown else size for axis, size in enumerate(shape)]
        return torch.zeros((), dtype=dtype).expand(sizes)


def _agree(value: Tensor, other: Tensor) -> bool:
    if value.dtype is not other.dtype or value.shape != other.shape:
        return False
    if not value.is_floating_point():
        return torch.equal(value, other)
    return torch.allclose(value, other, _ROUNDED, _ROUNDED, equal_nan=True)


def _some_of(lengths: Sequence[int]) -> list[int]:
    """The longest, the shortest, the longest but one, and some between, fewer of the long ones."""
    places, place = {0, 1, len(lengths) - 1}, 2
    while place < len(lengths):
        places.add(place)
        place += place // 2
    return [lengths[place] for place in sorted(places) if place < len(lengths)]
