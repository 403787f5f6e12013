"""A product of concatenated values as a sum of products of their terms.

    linear(cat(t, h, t - h, t * h), W)    ->    linear(h, W2 - W3) once a request
                                                + linear(t, W1 + W3) once a pair, for all positions
                                                + linear(t * h, W4)

For example the attention of a Deep Interest Network: t is the candidate, repeated along the history
h.
"""

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import torch
from torch import Tensor
from torch.fx import Node

from sharded_infer.towers.split.sizes import Layout
from sharded_infer.towers.split.split_graphs import SplitGraphs

_aten = torch.ops.aten
_BY_SAMPLE: Final = Layout(0, 1)
_SIGNS: Final[Mapping[object, float]] = {_aten.add.Tensor: 1.0, _aten.sub.Tensor: -1.0}
_SAME: Final = (_aten.clone.default, _aten.contiguous.default, _aten.dropout.default)

# Adds a product to a graph. Arguments: by request or by pair, its input, its columns, and with or
# without the bias.
Multiply: TypeAlias = Callable[[bool, Node, Tensor, bool], Node]


def distributed(
    graphs: SplitGraphs, source: object, weight: Tensor, multiply: Multiply
) -> Node | None:
    """Product of a concatenation with an fp32 or bf16 `[N, K]` weight, as a sum by pair.

    None if the input is no concatenation along its last axis, or nothing would be saved.
    """
    dtype = None
    if isinstance(source, Node) and source.target is _aten.to.dtype and len(source.args) == 2:
        source, dtype = source.args
    if not isinstance(source, Node) or source.target not in (
        _aten.cat.default,
        _aten.concat.default,
    ):
        return None
    terms = _Terms(graphs, source)
    if not terms.take_all(weight) or not terms.saves:
        return None
    total = None
    for number, (by_request, nodes) in enumerate(terms.groups()):
        columns = torch.cat([terms.columns[node] for node in nodes], 1).to(weight.dtype)
        inputs = [graphs.at(by_request, node) for node in nodes]
        joined = inputs[0]
        if len(inputs) > 1:
            joined = graphs.call(by_request, _aten.cat.default, inputs, -1)
        if dtype is not None:
            joined = graphs.call(by_request, _aten.to.dtype, joined, dtype)
        made = multiply(by_request, joined, columns.contiguous(), number == 0)
        if by_request:
            graphs.saved_products += columns.numel()
            made = graphs.rows(made)
        total = made if total is None else graphs.call(False, _aten.add.Tensor, total, made)
    return total


class _Terms:
    """Terms of a concatenation.

    Attributes:
        columns: of the weight for each value, fp32 `[N, width]`; in the values' order.
        saves: True if a sum or a repetition was resolved.
    """

    def __init__(self, graphs: SplitGraphs, source: Node) -> None:
        self._graphs, self._source = graphs, source
        self.columns: dict[Node, Tensor] = {}
        self.saves = False

    def take_all(self, weight: Tensor) -> bool:
        """Takes all values; False if one cannot be taken."""
        shape = self._graphs.sizes.shape(self._source)
        nodes, dim = self._source.args[0], (*self._source.args, 0)[1]
        if shape is None or len(shape) < 2 or dim not in (-1, len(shape)):
            return False
        if not isinstance(nodes, list | tuple):
            return False
        start = 0
        for node in nodes:
            of_one = self._graphs.sizes.shape(node) if isinstance(node, Node) else None
            if of_one is None or not isinstance(node, Node):
                return False
            self._take(node, weight[:, start : start + of_one[-1]].float())
            start += of_one[-1]
        ranks = {self._graphs.sizes.rank(node) for node in self.columns}
        return start == weight.shape[1] and ranks == {len(shape) + 1}

    def groups(self) -> list[tuple[bool, list[Node]]]:
        """Values that can be concatenated, and a flag by request; these come first.

        Repeated ones have one position, all others as many as the whole.
        """
        found: dict[tuple[object, ...], list[Node]] = {}
        for node in self.columns:
            inner = self._graphs.sizes.inner(node)
            found.setdefault((not self._is_shared(node), *inner), []).append(node)
        return [(not key[0], found[key]) for key in sorted(found, key=lambda key: bool(key[0]))]

    def _take(self, node: Node, columns: Tensor) -> None:
        inside = None if self._is_shared(node) else self._inside(node)
        if inside is None:
            self.columns[node] = self.columns.get(node, 0.0) + columns
            return
        self.saves = True
        for one, sign in inside:
            self._take(one, sign * columns)

    def _inside(self, node: Node) -> list[tuple[Node, float]] | None:
        """Terms of a sum, if that makes one of them cheaper."""
        if node.target in _SAME or self._is_repeated(node):
            return [(node.args[0], 1.0)]  # type: ignore[list-item]
        sign = _SIGNS.get(node.target)
        if sign is None or node.kwargs or len(node.args) != 2:
            return None
        first, second = node.args
        if not isinstance(first, Node) or not isinstance(second, Node):
            return None
        sizes = [self._graphs.sizes.shape(one) for one in (node, first, second)]
        if any(size is None or size[-1:] != sizes[0][-1:] for size in sizes):  # type: ignore[index]
            return None
        cheap = any(self._is_shared(one) or self._is_repeated(one) for one in (first, second))
        return [(first, 1.0), (second, sign)] if cheap else None

    def _is_shared(self, node: Node) -> bool:
        shared = self._graphs.value(node, by_request=True)
        return shared is not None and self._graphs.sizes.layout(node) == _BY_SAMPLE

    def _is_repeated(self, node: Node) -> bool:
        source = node.args[0] if node.target is _aten.expand.default else None
        if not isinstance(source, Node):
            return False
        shape, before = self._graphs.sizes.shape(node), self._graphs.sizes.shape(source)
        return (
            shape is not None
            and before is not None
            and len(shape) == len(before)
            and shape[-1] == before[-1]
        )
