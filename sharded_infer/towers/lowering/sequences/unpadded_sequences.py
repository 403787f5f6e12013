"""Removal of padding's work where sequences have none.

    masked_fill(x, arange(n) >= lengths, 0)             ->  x
    embedding(W, clamp(lengths - 1 - arange(n), 0, m))  ->  flip(W)[m + 1 - n:]
    index_select(x, 1, lengths - 1)                     ->  x[:, -1:]
    biases[clamp(arange(n)[:, None] - arange(n), 0)]    ->  B[:n, :n]
    softmax(masked_fill(x, later, -inf))                ->  softmax(hide_later(x))

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

from kernels.sequences.attention import Weights
from sharded_infer.towers.lowering.constants import add_call, add_constant, constant_of
from sharded_infer.towers.lowering.rewriting import (
    AND,
    ATTENTION_ARGUMENTS,
    CLAMPS,
    OR,
    module_of,
    remove_unused,
)
from sharded_infer.towers.lowering.sequences.attention import (
    AttentionPass,
    HeadsPass,
    hide_later,
)
from sharded_infer.towers.lowering.sequences.fixed_values import FixedValues, index_of
from sharded_infer.towers.lowering.sequences.symbolic_sizes import Number, Symbol, SymbolicSizes
from sharded_infer.towers.lowering.tensor_kinds import kinds_of

_aten = torch.ops.aten
_TO_END: Final = sys.maxsize
_ALL, _NONE = Number(1), Number(0)
_AND: Final = (*AND, _aten.mul.Tensor)
_OR: Final = (*OR, _aten.add.Tensor, _aten.sub.Tensor)
_HIDING: Final = (_aten.masked_fill.Scalar, _aten.add.Tensor, _aten.baddbmm.default)
# Added to a score, or instead of it, so that its weight is 0.
_HIDDEN: Final = -1e6


@dataclass(frozen=True, slots=True)
class UnpaddedSequences:
    """Inputs of a program that are sequences without padding.

    Attributes:
        sequences: for each input, the sequence whose positions its second axis has.
        lengths: for each input, the sequence whose lengths it is.
        runs: inputs of several lengths, which no two sequences share, without padding.
    """

    sequences: tuple[Symbol | None, ...]
    lengths: tuple[Symbol | None, ...]
    runs: tuple[Sequence[Tensor], ...]


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
        self._kinds = [kinds_of(program, one) for one in whole.runs]
        self._known = SymbolicSizes(self._kinds[0])
        self._sizes: dict[Symbol, Node] = {}
        inputs = [node for node in program.graph.nodes if node.op == "placeholder"]
        roles = zip(inputs, whole.sequences, whole.lengths, strict=False)
        for node, sequence, lengths in roles:
            if lengths is not None:
                self._known.know(node, Number(0, 1, 0, lengths))
            if sequence is not None and sequence not in self._sizes:
                with program.graph.inserting_after(inputs[-1]):
                    size = program.graph.call_function(_aten.sym_size.int, (node, 1))
                self._sizes[sequence] = size
        # A size that only one sequence has in all runs.
        symbols = {
            tuple(run[place].shape[1] for run in whole.runs): sequence
            for place, sequence in enumerate(whole.sequences)
            if sequence is not None
        }
        self._fixed = FixedValues(program, self._known, self._kinds, symbols)

    def run(self) -> int:
        changes = 0
        for node in list(self._graph.nodes):
            if node.op not in ("call_function", "call_module"):
                continue
            self._know(node)
            with self._graph.inserting_before(node):
                made = self._instead(node)
            if made is not None:
                node.replace_all_uses_with(made)
                changes += 1
        changes += self._compute_fixed()
        for size in self._sizes.values():
            if not size.users:
                self._graph.erase_node(size)
        return changes

    def _know(self, node: Node) -> None:
        if node.target is _aten.sym_size.int:
            symbol = self._fixed.symbol(node.args[0], node.args[1])
            self._known.know(node, None if symbol is None else Number(0, 1, 0, symbol))
        else:
            self._known.learn(node)
        self._fixed.learn(node)

    def _instead(self, node: Node) -> Node | None:
        target: Any = node.target
        numbers = [self._known.of(one) for one in node.args]
        unmasked = self._unmasked_numbers(node, numbers) or self._unmasked_scores(node)
        if unmasked is not None:
            return unmasked
        if target in CLAMPS and self._known.of(node) is not None:
            return self._same(node, node.args[0])
        if target is _aten.scaled_dot_product_attention.default:
            return self._unmasked(node)
        if target is _aten.index_select.default and (at := numbers[2]) and not at.positions:
            return self._read_one(node, at)
        index = index_of(node)
        if index is not None:
            return self._read_constant(node, index)
        return self._causal(node) or self._last_query(node)

    def _unmasked_numbers(self, node: Node, numbers: Sequence[Number | None]) -> Node | None:
        """Numbers of which a mask hides none, or all."""
        target: Any = node.target
        if target is _aten.masked_fill.Scalar and numbers[1] == _NONE:
            return self._same(node, node.args[0])
        if target is _aten.where.self and numbers[0] in (_ALL, _NONE):
            return self._same(node, node.args[1 if numbers[0] == _ALL else 2])
        if target in (*_AND, *_OR) and not node.kwargs:
            neutral = _ALL if target in _AND else _NONE
            if numbers[1] == neutral:
                return self._same(node, node.args[0])
            if numbers[0] == neutral and target is not _aten.sub.Tensor:
                return self._same(node, node.args[1])
        return None

    def _shape(self, node: object, run: int = 0) -> torch.Size:
        found = self._kinds[run].get(node) if isinstance(node, Node) else None
        return torch.Size() if found is None else found[1]

    def _same(self, node: Node, other: object) -> Node | None:
        """Another node, if its result has the same dtype and shape."""
        if not isinstance(other, Node):
            return None
        is_same = all(kinds.get(node) == kinds.get(other) for kinds in self._kinds)
        return other if is_same and self._kinds[0].get(node) is not None else None

    def _unmasked(self, node: Node) -> Node | None:
        """Torch's attention, without a mask that hides nothing, or later keys alone."""
        given = dict(zip(ATTENTION_ARGUMENTS, node.args, strict=False)) | node.kwargs
        mask = given.get("attn_mask")
        kind = self._kinds[0].get(mask) if isinstance(mask, Node) else None
        # A bool mask is true where a key is seen.
        shown = _NONE if kind is None or kind[0] is not torch.bool else _ALL
        if kind is None:
            return None
        if self._hides_later(mask, shows=True):
            given["is_causal"] = True
        elif self._known.of(mask) != shown:
            return None
        query, key, value = (given.pop(name) for name in ATTENTION_ARGUMENTS[:3])
        del given["attn_mask"]
        made = self._graph.call_function(node.target, (query, key, value), given)  # type: ignore[arg-type]
        return self._like(made, node)

    def _unmasked_scores(self, node: Node) -> Node | None:
        """Scores before a softmax, without a mask that hides the later keys alone."""
        readers = {one.target for one in node.users}
        if node.target not in _HIDING or node.kwargs or readers != {_aten.softmax.int}:
            return None
        scores, mask, *rest = node.args
        if node.target is _aten.masked_fill.Scalar:
            hides = isinstance(rest[0], int | float) and rest[0] <= _HIDDEN
            if not hides or not self._hides_later(mask):
                return None
        elif self._hides_later(scores):
            scores = mask
            if node.target is _aten.baddbmm.default:
                product = self._graph.call_function(_aten.bmm.default, (mask, *rest))
                scores = self._like(product, node)
        elif node.target is _aten.baddbmm.default or not self._hides_later(mask):
            return None
        return self._like(self._graph.call_function(hide_later, (scores,)), node)

    def _read_one(self, node: Node, at: Number) -> Node | None:
        source, axis, index = node.args
        if self._shape(index) != (1,):
            return None
        if at == _NONE:
            bounds = 0, 1
        elif self._is_last(index, source, axis):
            bounds = -1, _TO_END
        else:
            return None
        return self._like(self._cut(source, axis, *bounds), node)

    def _read_constant(self, node: Node, index: object) -> Node | None:
        """A view of a constant's rows in order, or from the length's on in reverse."""
        rows = constant_of(self._program, node.args[0])
        number, shape = self._known.of(index), self._shape(index)
        if rows is None or number is None or number.symbol is None or shape[:-1].numel() != 1:
            return None
        least, largest = number.bounds
        size, longest = self._sizes[number.symbol], number.symbol.longest
        if number.axis != -1 or not 0 <= least <= largest < len(rows):
            return None
        if number[1:3] == (0, 1):
            end = self._graph.call_function(operator.add, (size, number.constant))
            made = self._cut(node.args[0], 0, number.constant, end)
        elif number[1:3] == (1, -1):
            reverse = self._constant(rows[: longest + number.constant + 1].flip(0))
            begin = self._graph.call_function(operator.sub, (longest, size))
            made = self._cut(reverse, 0, begin, longest)
        else:
            return None
        for _ in shape[:-1]:
            made = self._graph.call_function(_aten.unsqueeze.default, (made, 0))
        return self._like(made, node)

    def _causal(self, node: Node) -> Node | None:
        """A pass that hides later keys itself."""
        found = module_of(self._program, node, AttentionPass)
        if found is None or found.attention.weights is not Weights.SILU:
            return None
        query, key, value, bias, mask = node.args
        if found.attention.causal or not self._hides_later(mask):
            return None
        made = AttentionPass(replace(found.attention, causal=True))
        arguments = query, key, value, bias, None
        return self._like(add_call(self._program, "_attention", made, arguments), node)

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
        number, symbol = self._known.of(position), self._fixed.symbol(source, axis)
        return symbol is not None and number == Number(-1, 1, 0, symbol)

    def _hides_later(self, mask: object, *, shows: bool = False) -> bool:
        """True if a mask hides just the keys behind each query, with as many queries as keys.

        With `shows`, a bool mask is true for what it shows.
        """
        if not isinstance(mask, Node) or len(self._fixed.axes(mask)) != 2:
            return False
        longest = self._fixed.found[mask].longest if mask in self._fixed.found else 0
        hidden = self._fixed.at_longest(mask) if longest else torch.empty(0)
        if hidden.shape[-2:] != (longest, longest):
            return False
        later = torch.ones(longest, longest, dtype=torch.bool).triu(1)
        if hidden.dtype is not torch.bool:
            later = torch.zeros(longest, longest).masked_fill(later, -torch.inf).to(hidden.dtype)
        elif shows:
            later = ~later
        return torch.equal(hidden, later.expand_as(hidden))

    def _compute_fixed(self) -> int:
        """Replaces functions of positions by constants; returns their number."""
        changes = 0
        for node, symbol in self._fixed.found.items():
            # A view is one already; lengths and positions stay known in the next walk.
            is_cheap = node.target is _aten.slice.Tensor or self._known.of(node) is not None
            if is_cheap or all(user in self._fixed.found for user in node.users):
                continue
            with self._graph.inserting_before(node):
                made = self._constant(self._fixed.at_longest(node))
                for axis in self._fixed.axes(node):
                    made = self._cut(made, axis, 0, self._sizes[symbol])
            node.replace_all_uses_with(made, lambda user: user not in self._fixed.found)
            changes += 1
        return changes

    def _constant(self, value: Tensor) -> Node:
        return add_constant(self._program, "_whole", value.contiguous())

    def _cut(self, source: Any, axis: Any, begin: Any, end: Any) -> Node:
        return self._graph.call_function(_aten.slice.Tensor, (source, axis, begin, end))

    def _like(self, made: Node, node: Node) -> Node:
        for kinds in self._kinds:
            if node in kinds:
                kinds[made] = kinds[node]
        self._known.know(made, self._known.of(node))
        return made
