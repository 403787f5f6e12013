"""Attention by one pass, in towers over sequences.

    scaled_dot_product_attention(q, k, v, is_causal)              ->  attention(q, k, v)
    silu(q @ k.mT + bias).masked_fill(mask, 0) / n @ v            ->  attention(q, k, v, bias, mask)
    softmax((q @ k.mT * scale).masked_fill(later, -inf)) @ v      ->  attention(q, k, v)

A mask of later keys is known by its values, however a module makes it.

See `kernels.sequences.attention`. The second is that of HSTU (Zhai et al. 2024, arXiv:2402.17152).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from kernels.abi.attention import Weights
from kernels.sequences.attention import Attention
from sharded_infer.towers.lowering.constants import add_call
from sharded_infer.towers.lowering.rewriting import (
    ATTENTION_ARGUMENTS,
    module_of,
    only_user,
    remove_unused,
)
from sharded_infer.towers.lowering.sequences.position_values import PositionValues
from sharded_infer.towers.lowering.sequences.row_operators import RowOperators
from sharded_infer.towers.lowering.tensor_kinds import kinds_of

_aten = torch.ops.aten
_SDPA: Final = _aten.scaled_dot_product_attention.default
_STACKED: Final = (_aten.bmm.default, _aten.baddbmm.default)
_PRODUCTS: Final = (_aten.matmul.default, *_STACKED)
_TURNS: Final = (_aten.transpose.int, _aten.swapaxes.default, _aten.swapdims.default)
_LAST_TWO: Final = ({2, 3}, {-1, -2})
# Added to a score, or instead of it, so that its weight is 0.
_HIDDEN: Final = -1e6


class AttentionPass(torch.nn.Module):
    """The pass; tensors as in `kernels.sequences.attention.Attention`."""

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, *tensors: Any) -> Tensor:
        """Runs the pass."""
        return self.attention(*tensors)


class HeadsPass(torch.nn.Module):
    """The pass on rows whose columns are those of all heads: as in `Attention.of_heads`."""

    def __init__(
        self, attention: Attention, heads: int, columns: Sequence[tuple[int, int]]
    ) -> None:
        super().__init__()
        self.attention, self.heads, self.columns = attention, heads, tuple(columns)

    def forward(self, *tensors: Any) -> Tensor:
        """Runs the pass."""
        return self.attention.of_heads(*tensors, heads=self.heads, columns=self.columns)


def fuse_attention(program: GraphModule, values: PositionValues | None = None) -> int:
    """Fuses each attention, in place; returns the number of passes.

    `values` are those of a program for one request without padding: masks may be of positions.
    """
    made, masks = 0, _Masks(values)
    for node in list(program.graph.nodes):
        found = _torchs(node, masks) or _written_out(node, masks)
        if found is None:
            continue
        graph = program.graph
        with graph.inserting_before(found.last):
            tensors = found.tensors
            if found.stacked:
                tensors = [graph.call_function(_aten.unsqueeze.default, (t, 0)) for t in tensors]
            given = (*tensors, found.bias, found.mask)
            passed = add_call(program, "_attention", AttentionPass(found.attention), given)
            if found.stacked:
                passed = graph.call_function(_aten.squeeze.dim, (passed, 0))
        found.last.replace_all_uses_with(passed)
        made += 1
    if made:
        remove_unused(program)
    return made


def read_columns(program: GraphModule, inputs: Iterable[Sequence[Tensor]]) -> int:
    """Lets passes read columns of wider rows without views, in place; returns their number.

    `inputs` are valid ones of several sizes, for dtypes and shapes.
    """
    rows = RowOperators(program, [kinds_of(program, one) for one in inputs])
    passes = 0
    for node in program.graph.nodes:
        heads = module_of(program, node, HeadsPass)
        if heads is None:
            continue
        chosen: list[Any] = list(map(rows.columns, node.args[:3]))
        heads.columns = tuple(
            (columns.first + first, width)
            for columns, (first, width) in zip(chosen, heads.columns, strict=True)
        )
        node.args = (*(columns.node for columns in chosen), *node.args[3:])
        passes += 1
    if passes:
        remove_unused(program)
    return passes


@dataclass(frozen=True, slots=True)
class _Found:
    """An attention; `stacked`: its heads are the first of three axes."""

    attention: Attention
    tensors: Sequence[Any]  # query, key, value
    last: Node
    bias: Node | None = None
    mask: Node | None = None
    stacked: bool = False


class _Masks:
    """Masks that are functions of positions alone."""

    def __init__(self, values: PositionValues | None) -> None:
        self._values = values

    def hides_nothing(self, mask: object) -> bool:
        """True if a mask of torch's attention, true for what it shows or added, hides nothing."""

        def hides_nothing(value: Tensor, _: int) -> bool:
            return bool((value == int(value.dtype is torch.bool)).all())

        return self._values is not None and self._values.holds(mask, hides_nothing)

    def hides_later(self, mask: object, *, shows: bool = False) -> bool:
        """True if a mask hides just the keys behind each query, with as many queries as keys.

        With `shows`, a bool mask is true for what it shows.
        """
        if self._values is None or not isinstance(mask, Node):
            return False

        def hides_later(value: Tensor, n: int) -> bool:
            later = torch.ones(n, n, dtype=torch.bool).triu(1)
            if value.dtype is not torch.bool:
                later = torch.zeros(n, n).masked_fill(later, -torch.inf).to(value.dtype)
            elif shows:
                later = ~later
            return value.shape[-2:] == (n, n) and torch.equal(value, later.expand_as(value))

        return len(self._values.axes(mask)) == 2 and self._values.holds(mask, hides_later)

    def hides_scores(self, node: Node, scores: Node) -> bool:
        """True if a node hides later keys of scores before their softmax."""
        if node.target is _aten.masked_fill.Scalar:
            hidden = node.args[2]
            hides = isinstance(hidden, int | float) and hidden <= _HIDDEN
            return hides and self.hides_later(node.args[1])
        return self.hides_later(_other(node, scores))


def _torchs(node: Node, masks: _Masks) -> _Found | None:
    if node.target is not _SDPA:
        return None
    given = dict(zip(ATTENTION_ARGUMENTS, node.args, strict=False)) | node.kwargs
    if given.get("enable_gqa") or given.get("dropout_p"):
        return None
    mask, scale = given.get("attn_mask"), given.get("scale")
    hides_later = masks.hides_later(mask, shows=True)
    if mask is not None and not hides_later and not masks.hides_nothing(mask):
        return None
    if scale is not None and not isinstance(scale, int | float):
        return None
    attention = Attention(scale=scale, causal=hides_later or bool(given.get("is_causal")))
    return _Found(attention, (given["query"], given["key"], given["value"]), node)


def _written_out(product: Node, masks: _Masks) -> _Found | None:
    if product.target not in _PRODUCTS or product.kwargs:
        return None
    *added, first, turned = product.args
    # A product with an addend is one with a mask.
    causal = bool(added) and masks.hides_later(added[0])
    if (added and not causal) or not _is_turned(turned, product.target):
        return None
    query, scale = _scaled(first)
    between = _Between(masks, scale, causal)
    node, user = product, only_user(product)
    while user is not None and user.target not in _PRODUCTS:
        if not between.take(user, node):
            return None
        node, user = user, only_user(user)
    weights = between.weights
    if user is None or weights is None or user.args[0] is not node or user.args[1] is node:
        return None
    causal, mask = between.causal, between.mask
    # A softmax's weights that are hidden behind it have their share.
    if weights is Weights.SILU and masks.hides_later(mask):
        causal, mask = True, None
    attention = Attention(weights, between.scale, between.divisor, causal)
    tensors = query, turned.args[0], user.args[1]  # type: ignore[union-attr]
    stacked = product.target in _STACKED or user.target in _STACKED
    return _Found(attention, tensors, user, between.bias, mask, stacked)


class _Between:
    """Operators between the two products of an attention."""

    def __init__(self, masks: _Masks, scale: float, causal: bool) -> None:
        self._masks = masks
        self.scale, self.divisor, self.causal = scale, 1.0, causal
        self.weights: Weights | None = None
        self.bias: Node | None = None
        self.mask: Node | None = None

    def take(self, node: Node, source: Node) -> bool:
        """Takes the operator that reads another one; False if it is none of an attention."""
        return self._of_scores(node, source) if self.weights is None else self._of_weights(node)

    def _of_scores(self, node: Node, scores: Node) -> bool:
        factor, added = _factor(node), _other(node, scores)
        self.weights = _weights(node)
        if self.weights is not None or self.causal:
            return self.weights is Weights.SOFTMAX or not self.causal
        if self._masks.hides_scores(node, scores):
            self.causal = True
        elif self.bias is not None:
            return False
        elif factor is not None:
            self.scale *= factor
        else:
            self.bias = added
        return self.causal or factor is not None or added is not None

    def _of_weights(self, node: Node) -> bool:
        factor = _factor(node)
        if factor is not None:
            self.divisor /= factor
            return True
        if self.mask is not None or not _hides(node):
            return False
        self.mask = node.args[1]  # type: ignore[assignment]
        return True


def _scaled(query: Any) -> tuple[Any, float]:
    factor = _factor(query) if isinstance(query, Node) else None
    return (query, 1.0) if factor is None else (query.args[0], factor)


def _is_turned(node: object, product: object) -> bool:
    last = (*_LAST_TWO, {1, 2}) if product in _STACKED else _LAST_TWO
    return isinstance(node, Node) and node.target in _TURNS and set(node.args[1:]) in last


def _factor(node: Node) -> float | None:
    if node.kwargs or len(node.args) != 2 or not isinstance(node.args[1], int | float):
        return None
    number = float(node.args[1])
    if node.target in (_aten.mul.Tensor, _aten.mul.Scalar):
        return number or None
    divides = node.target in (_aten.div.Tensor, _aten.div.Scalar)
    return 1.0 / number if divides and number else None


def _weights(node: Node) -> Weights | None:
    if node.target is _aten.silu.default:
        return Weights.SILU
    is_last = node.target is _aten.softmax.int and node.args[1:] in ((-1,), (3,))
    return Weights.SOFTMAX if is_last and not node.kwargs else None


def _other(node: Node, one: Node) -> Node | None:
    if node.target is not _aten.add.Tensor or node.kwargs:
        return None
    others = [other for other in node.args if other is not one]
    return others[0] if len(others) == 1 and isinstance(others[0], Node) else None


def _hides(node: Node) -> bool:
    return bool(node.target is _aten.masked_fill.Scalar and node.args[2] == 0)
