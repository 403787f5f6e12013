"""Symbolic values of integers that depend on lengths and positions alone.

Without padding, a length is the number of positions n. Then `arange(n)`, lengths, and their sums
and differences are l * n + p * position + c in each place.
"""

import operator
import sys
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, Final, NamedTuple, cast

import torch
from torch.fx import Node

from sharded_infer.towers.lowering.rewriting import (
    CLAMPS,
    COMPARISONS,
    COPIES,
    NOT,
    RESHAPES,
)
from sharded_infer.towers.lowering.tensor_kinds import Kind

_aten = torch.ops.aten
_WIDE: Final = (torch.int64, torch.int32, torch.float32, torch.float64)


class Symbol(NamedTuple):
    """A sequence's number of positions, from 1 to `longest`."""

    number: int
    longest: int


class Number(NamedTuple):
    """Numbers of a tensor, or a size: `lengths * n + positions * position + constant`.

    Attributes:
        symbol: n; None where there is only the constant.
        axis: of positions, counted from the last one, -1; None where there are none.
    """

    constant: int = 0
    lengths: int = 0
    positions: int = 0
    symbol: Symbol | None = None
    axis: int | None = None

    @property
    def bounds(self) -> tuple[int, int]:
        """Least and largest number, over sequences of all lengths."""
        longest = 1 if self.symbol is None else self.symbol.longest
        # At the corners: of one position, and the first and the last of the longest.
        found = [
            self.lengths * n + self.positions * position + self.constant
            for n, position in ((1, 0), (longest, 0), (longest, longest - 1))
        ]
        return min(found), max(found)

    def added(self, other: "Number", factor: int) -> "Number | None":
        """The sum with `factor` times another; None if sequences or axes differ."""
        if None not in (self.symbol, other.symbol) and self.symbol != other.symbol:
            return None
        if None not in (self.axis, other.axis) and self.axis != other.axis:
            return None
        positions = self.positions + factor * other.positions
        lengths = self.lengths + factor * other.lengths
        return Number(
            self.constant + factor * other.constant,
            lengths,
            positions,
            (self.symbol or other.symbol) if lengths or positions else None,
            (other.axis if self.axis is None else self.axis) if positions else None,
        )


class SymbolicSizes:
    """Symbolic values of a program's tensors and sizes; true is 1.

    `kinds` are the dtypes and shapes of a run.
    """

    def __init__(self, kinds: Mapping[Node, Kind]) -> None:
        self.kinds = kinds
        self._known: dict[Node, Number] = {}

    def of(self, argument: object) -> Number | None:
        """The numbers of an argument."""
        if isinstance(argument, bool | int):
            return Number(int(argument))
        return self._known.get(argument) if isinstance(argument, Node) else None

    def know(self, node: Node, number: Number | None) -> None:
        """Records a node's numbers, if they are known."""
        if number is not None:
            self._known[node] = number

    def learn(self, node: Node) -> None:
        """Derives the numbers of a call from its arguments'."""
        rule = _RULES.get(node.target)
        if rule is not None:
            self.know(node, rule(self, node))


_Rule = Callable[[SymbolicSizes, Node], Number | None]


def _arange(known: SymbolicSizes, node: Node) -> Number | None:
    end = known.of(node.args[0])
    if end is None or end[:3] != (0, 1, 0) or node.kwargs.get("dtype") not in (None, torch.int64):
        return None
    return Number(0, 0, 1, end.symbol, -1)


def _first(known: SymbolicSizes, node: Node) -> Number | None:
    return known.of(node.args[0])


def _converted(known: SymbolicSizes, node: Node) -> Number | None:
    number, dtype = known.of(node.args[0]), known.kinds[node][0]
    if number is None:
        return None
    least, largest = number.bounds
    if dtype is torch.bool:
        same = least > 0 or largest < 0 or least == largest
        return Number(int(least != 0)) if same else None
    return number if dtype in _WIDE or (least >= 0 and largest <= 1) else None


def _shaped(known: SymbolicSizes, node: Node) -> Number | None:
    """Of another shape: the axis of positions may have moved."""
    number = known.of(node.args[0])
    if number is None or number.axis is None:
        return number
    if node.target is not _aten.unsqueeze.default:
        return None
    rank = len(known.kinds[node][1])
    place, new = rank - 1 + number.axis, cast(int, node.args[1]) % rank
    return number._replace(axis=(place if place < new else place + 1) - rank)


def _selected(known: SymbolicSizes, node: Node) -> Number | None:
    """Those at one place: of positions, a constant, or one counted from the end."""
    number, at = known.of(node.args[0]), node.args[2]
    if number is None or number.axis is None:
        return number
    rank = len(known.kinds[node][1]) + 1
    if cast(int, node.args[1]) % rank - rank != number.axis or not isinstance(at, int):
        return None
    lengths = number.lengths + (number.positions if at < 0 else 0)
    constant = number.constant + number.positions * at
    return Number(constant, lengths, 0, number.symbol if lengths else None)


def _indexed(known: SymbolicSizes, node: Node) -> Number | None:
    """Positions at known places, from the first one on."""
    positions, places = known.of(node.args[0]), cast(list[object], node.args[1])
    at = known.of(places[0]) if len(places) == 1 else None
    if at is None or positions is None or positions[:3] != (0, 0, 1) or at.bounds[0] < 0:
        return None
    return at if len(known.kinds[cast(Node, node.args[0])][1]) == 1 else None


def _inverted(known: SymbolicSizes, node: Node) -> Number | None:
    number = known.of(node.args[0])
    if number not in (Number(0), Number(1)) or known.kinds[node][0] is not torch.bool:
        return None
    return Number(1 - number.constant)


def _clamped(known: SymbolicSizes, node: Node) -> Number | None:
    """Numbers within the bounds, unchanged."""
    number = known.of(node.args[0])
    if number is None or node.kwargs:
        return None
    bounds = (None, *node.args[1:]) if node.target is _aten.clamp_max.default else node.args[1:]
    least, largest = number.bounds
    # Distance of the numbers from the lower and the upper bound.
    for bound, sign, there in zip(bounds, (1, -1), (least, largest), strict=False):
        is_far = isinstance(bound, int | float) and sign * (there - bound) >= 0
        if bound is not None and not is_far:
            return None
    return number


def _masked(known: SymbolicSizes, node: Node) -> Number | None:
    return known.of(node.args[0]) if known.of(node.args[1]) == Number(0) else None


def _times(known: SymbolicSizes, node: Node) -> Number | None:
    """0 times a number, the form of additive masks."""
    factor = node.args[1]
    is_number = isinstance(factor, int | float) and isfinite(factor)
    return Number(0) if is_number and known.of(node.args[0]) == Number(0) else None


def _cut(known: SymbolicSizes, node: Node) -> Number | None:
    is_all = node.args[2:] in ((), (0, sys.maxsize))
    return known.of(node.args[0]) if is_all else None


def _summed(sign: int) -> _Rule:
    def number_of(known: SymbolicSizes, node: Node) -> Number | None:
        first, second = map(known.of, node.args[:2])
        alpha = node.kwargs.get("alpha", 1)
        if first is None or second is None or not isinstance(alpha, int):
            return None
        return first.added(second, sign * alpha)

    return number_of


def _reversed_difference(known: SymbolicSizes, node: Node) -> Number | None:
    first, second = map(known.of, node.args[:2])
    return None if first is None or second is None else second.added(first, -1)


def _compared(compare: Callable[[int, int], bool]) -> _Rule:
    def number_of(known: SymbolicSizes, node: Node) -> Number | None:
        first, second = map(known.of, node.args[:2])
        difference = None if first is None or second is None else first.added(second, -1)
        if difference is None:
            return None
        least, largest = difference.bounds
        # Between them, one may be 0.
        looked_at = (least, 0, largest) if least < 0 < largest else (least, largest)
        found = {compare(one, 0) for one in looked_at}
        return Number(int(found.pop())) if len(found) == 1 else None

    return number_of


_RULES: Final[Mapping[Any, _Rule]] = {
    _aten.arange.default: _arange,
    **dict.fromkeys((_aten.zeros.default, _aten.zeros_like.default), lambda *_: Number(0)),
    **dict.fromkeys((_aten.ones.default, _aten.ones_like.default), lambda *_: Number(1)),
    **dict.fromkeys(
        (*(*COPIES, _aten.detach.default, _aten.expand.default, _aten.expand_as.default),),
        _first,
    ),
    **dict.fromkeys(
        (*(*RESHAPES, _aten.unsqueeze.default, _aten.squeeze.dim, _aten.squeeze.default),),
        _shaped,
    ),
    _aten.select.int: _selected,
    _aten.index.Tensor: _indexed,
    **dict.fromkeys((_aten.to.dtype, _aten._to_copy.default), _converted),
    **dict.fromkeys(NOT, _inverted),
    **dict.fromkeys(CLAMPS, _clamped),
    _aten.masked_fill.Scalar: _masked,
    _aten.slice.Tensor: _cut,
    **dict.fromkeys((_aten.mul.Tensor, _aten.mul.Scalar), _times),
    **dict.fromkeys((_aten.add.Tensor, _aten.add.Scalar, operator.add), _summed(1)),
    **dict.fromkeys((_aten.sub.Tensor, _aten.sub.Scalar, operator.sub), _summed(-1)),
    **dict.fromkeys((_aten.rsub.Tensor, _aten.rsub.Scalar), _reversed_difference),
    **{
        target: _compared(getattr(operator, name))
        for name, targets in COMPARISONS.items()
        for target in targets
    },
}
