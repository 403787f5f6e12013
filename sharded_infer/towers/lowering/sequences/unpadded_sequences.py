"""Removal of padding's work where sequences have none.

    masked_fill(x, arange(n) >= lengths, 0)             ->  x
    embedding(W, clamp(lengths - 1 - arange(n), 0, m))  ->  P[longest - n:]
    index_select(x, 1, lengths - 1)                     ->  x[:, -1:]
    biases[clamp(arange(n)[:, None] - arange(n), 0)]    ->  B[:n, :n]

A request's own sequences need no padding: their lengths are their numbers of positions. Functions
of positions and weights alone are computed once for the longest sequence, and cut.
"""

import operator
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from sharded_infer.towers.lowering.constants import add_call, add_constant
from sharded_infer.towers.lowering.rewriting import (
    AND,
    CLAMPS,
    OR,
    module_of,
    remove_unused,
)
from sharded_infer.towers.lowering.sequences.attention import HeadsPass
from sharded_infer.towers.lowering.sequences.position_values import PositionValues, Symbol
from sharded_infer.towers.lowering.tensor_kinds import kinds_of

_aten = torch.ops.aten
_TO_END: Final = sys.maxsize
_AND: Final = (*AND, _aten.mul.Tensor)
_OR: Final = (*OR, _aten.add.Tensor, _aten.sub.Tensor)


@dataclass(frozen=True, slots=True)
class UnpaddedSequences:
    """Inputs of a program that are sequences without padding.

    Attributes:
        sequences: for each input, the sequence whose positions its second axis has.
        lengths: for each input, the sequence whose lengths it is.
        runs: inputs without padding of several lengths, by which sequences differ; among them the
            shortest, and the longest at the end.
    """

    sequences: tuple[Symbol | None, ...]
    lengths: tuple[Symbol | None, ...]
    runs: tuple[Sequence[Tensor], ...]

    def values(self, program: GraphModule) -> PositionValues:
        """Values of positions of a program with these inputs."""
        inputs = [node for node in program.graph.nodes if node.op == "placeholder"]
        # A size that only one sequence has in all runs.
        symbols = {
            tuple(run[place].shape[1] for run in self.runs): sequence
            for place, sequence in enumerate(self.sequences)
            if sequence is not None
        }
        roles = zip(inputs, self.lengths, strict=False)
        lengths = {node: symbol for node, symbol in roles if symbol is not None}
        kinds = [kinds_of(program, run) for run in self.runs]
        return PositionValues(program, kinds, symbols, lengths)


def remove_padding(program: GraphModule, whole: UnpaddedSequences) -> int:
    """Removes padding's work, in place, from a program for one request; returns the changes."""
    rewriting = _Rewriting(program, whole)
    changes = rewriting.run()
    if changes:
        remove_unused(program)
    return changes


class _Rewriting:
    def __init__(self, program: GraphModule, whole: UnpaddedSequences) -> None:
        self._program, self._graph = program, program.graph
        self._values = whole.values(program)
        self._kinds = self._values.kinds
        inputs = [node for node in program.graph.nodes if node.op == "placeholder"]
        self._sizes: dict[Symbol, Node] = {}
        for node, sequence in zip(inputs, whole.sequences, strict=False):
            if sequence is not None and sequence not in self._sizes:
                with program.graph.inserting_after(inputs[-1]):
                    size = program.graph.call_function(_aten.sym_size.int, (node, 1))
                self._sizes[sequence] = size

    def run(self) -> int:
        changes = 0
        for node in list(self._graph.nodes):
            if node.op not in ("call_function", "call_module") or node in self._values.found:
                continue
            with self._graph.inserting_before(node):
                made = self._instead(node)
            if made is not None:
                node.replace_all_uses_with(made)
                changes += 1
        changes += self._simplify_positions()
        for size in self._sizes.values():
            if not size.users:
                self._graph.erase_node(size)
        return changes

    def _instead(self, node: Node) -> Node | None:
        if node.target is _aten.index_select.default:
            return self._read_one(node)
        return self._unmasked_numbers(node) or self._last_query(node)

    def _unmasked_numbers(self, node: Node) -> Node | None:
        """Numbers of which a mask hides none, or all."""
        target: Any = node.target
        if target is _aten.masked_fill.Scalar and self._is(node.args[1], 0):
            return self._same(node, node.args[0])
        if target is _aten.where.self:
            mask, *chosen = node.args
            for number, other in zip((1, 0), chosen, strict=True):
                if self._is(mask, number):
                    return self._same(node, other)
        if target in (*_AND, *_OR) and not node.kwargs:
            first, second = node.args
            neutral = int(target in _AND)
            if self._is(second, neutral):
                return self._same(node, first)
            if target is not _aten.sub.Tensor and self._is(first, neutral):
                return self._same(node, second)
        return None

    def _is(self, node: object, number: int) -> bool:
        """True if a value is a number everywhere; true is 1."""
        return self._values.holds(
            node, lambda value, _: bool((torch.as_tensor(value) == number).all())
        )

    def _shape(self, node: object, run: int = 0) -> torch.Size:
        found = self._kinds[run].get(node) if isinstance(node, Node) else None
        return torch.Size() if found is None else found[1]

    def _same(self, node: Node, other: object) -> Node | None:
        """Another node, if its result has the same dtype and shape."""
        if not isinstance(other, Node):
            return None
        is_same = all(kinds.get(node) == kinds.get(other) for kinds in self._kinds)
        return other if is_same and self._kinds[0].get(node) is not None else None

    def _read_one(self, node: Node) -> Node | None:
        source, axis, index = node.args
        if self._shape(index) != (1,):
            return None
        if self._is(index, 0):
            bounds = 0, 1
        elif self._is_last(index, source, axis):
            bounds = -1, _TO_END
        else:
            return None
        return self._like(self._cut(source, axis, *bounds), node)

    def _last_query(self, node: Node) -> Node | None:
        """A pass that need not hide later keys, because its query is the last."""
        found = module_of(self._program, node, HeadsPass)
        if found is None or not found.attention.causal or self._shape(node.args[0])[1] != 1:
            return None
        *arguments, first = node.args
        if len(arguments) != 5 or not self._is_last(first, node.args[1], 1):
            return None
        made = HeadsPass(replace(found.attention, causal=False), found.heads, found.columns)
        return self._like(add_call(self._program, "_heads", made, tuple(arguments)), node)

    def _is_last(self, position: object, source: object, axis: object) -> bool:
        """True for the last position along an axis that has all of a sequence."""
        symbol = self._values.symbol(source, axis)
        if symbol is None or self._values.found.get(position) != symbol:  # type: ignore[call-overload]
            return False
        return self._values.holds(position, lambda value, n: bool((value == n - 1).all()))

    def _simplify_positions(self) -> int:
        """Replaces functions of positions by constants, and lengths within bounds by themselves."""
        changes = 0
        for node in list(self._values.found):
            unbounded = self._unbounded(node)
            if unbounded is not None:
                node.replace_all_uses_with(unbounded)
                changes += 1
                continue
            with self._graph.inserting_before(node):
                made = self._fixed(node)
            if made is not None:
                node.replace_all_uses_with(made, lambda user: user not in self._values.found)
                changes += 1
        return changes

    def _unbounded(self, node: Node) -> Node | None:
        """Lengths of which a bound changes none."""
        if node.target not in CLAMPS or self._values.axes(node):
            return None
        is_same = self._values.are_equal(node, node.args[0])
        return self._same(node, node.args[0]) if is_same else None

    def _fixed(self, node: Node) -> Node | None:
        """The first or the last positions of a constant, where others than positions read them."""
        symbol, source = self._values.found[node], node
        if symbol is None or all(user in self._values.found for user in node.users):
            return None
        # A view of a constant is one already.
        while source.target is _aten.slice.Tensor:
            source = source.args[0]  # type: ignore[assignment]
        part = None if source.op == "get_attr" else self._values.part_of_longest(node)
        if part is None:
            return None
        made = add_constant(self._program, "_whole", part.longest.contiguous())
        begin: Node | int = 0
        end: Node | int = self._sizes[symbol]
        if part.is_last:
            begin = self._graph.call_function(operator.sub, (symbol.longest, end))
            end = symbol.longest
        for axis in self._values.axes(node):
            made = self._cut(made, axis, begin, end)
        return made

    def _cut(self, source: Any, axis: Any, begin: Any, end: Any) -> Node:
        return self._graph.call_function(_aten.slice.Tensor, (source, axis, begin, end))

    def _like(self, made: Node, node: Node) -> Node:
        for kinds in self._kinds:
            if node in kinds:
                kinds[made] = kinds[node]
        return made
