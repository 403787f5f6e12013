"""Attention by one pass, in towers over sequences.

    scaled_dot_product_attention(q, k, v, is_causal)              ->  attention(q, k, v)
    silu(q @ k.mT + bias).masked_fill(mask, 0) / n @ v            ->  attention(q, k, v, bias, mask)
    softmax(hide_later(q @ k.mT * scale)) @ v                     ->  attention(q, k, v)

See `kernels.sequences.attention`. The second is that of HSTU (Zhai et al. 2024, arXiv:2402.17152).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from kernels.sequences.attention import Attention, Weights
from sharded_infer.towers.lowering.constants import add_call
from sharded_infer.towers.lowering.rewriting import (
    ATTENTION_ARGUMENTS,
    module_of,
    only_user,
    remove_unused,
)
from sharded_infer.towers.lowering.sequences.row_operators import RowOperators
from sharded_infer.towers.lowering.tensor_kinds import kinds_of

_aten = torch.ops.aten
_SDPA: Final = _aten.scaled_dot_product_attention.default
_PRODUCTS: Final = (_aten.matmul.default, _aten.bmm.default)
_TURNS: Final = (_aten.transpose.int, _aten.swapaxes.default, _aten.swapdims.default)
_LAST_TWO: Final = ({2, 3}, {-1, -2})


def hide_later(scores: Tensor) -> Tensor:
    """Scores `[..., L, L]` with -inf for the keys behind each query."""
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(later, -torch.inf)


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


def fuse_attention(program: GraphModule) -> int:
    """Fuses each attention, in place; returns the number of passes."""
    made = 0
    for node in list(program.graph.nodes):
        found = _torchs(node) or _written_out(node)
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


def _torchs(node: Node) -> _Found | None:
    if node.target is not _SDPA:
        return None
    given = dict(zip(ATTENTION_ARGUMENTS, node.args, strict=False)) | node.kwargs
    if given.get("attn_mask") is not None or given.get("enable_gqa") or given.get("dropout_p"):
        return None
    scale = given.get("scale")
    if scale is not None and not isinstance(scale, int | float):
        return None
    attention = Attention(scale=scale, causal=bool(given.get("is_causal")))
    return _Found(attention, (given["query"], given["key"], given["value"]), node)


def _written_out(product: Node) -> _Found | None:
    if product.target not in _PRODUCTS or not _is_turned(product.args[1], product.target):
        return None
    (query, scale), turned = _scaled(product.args[0]), product.args[1]
    divisor, causal = 1.0, False
    weights: Weights | None = None
    bias: Node | None = None
    mask: Node | None = None
    node, user = product, only_user(product)
    while user is not None and user.target not in _PRODUCTS:
        factor = _factor(user)
        kind = _weights(user)
        if factor is not None and weights is not None:
            divisor /= factor
        elif factor is not None and bias is None:
            scale *= factor
        elif kind is not None and weights is None:
            weights = kind
        elif user.target is hide_later and weights is None:
            causal = True
        elif weights is None and bias is None and _other(user, node) is not None:
            bias = _other(user, node)
        elif weights is not None and mask is None and _hides(user):
            mask = user.args[1]  # type: ignore[assignment]
        else:
            return None
        node, user = user, only_user(user)
    if user is None or weights is None or user.args[0] is not node or user.args[1] is node:
        return None
    attention = Attention(weights, scale, divisor, causal)
    tensors = query, turned.args[0], user.args[1]  # type: ignore[union-attr]
    stacked = _aten.bmm.default in (product.target, user.target)
    return _Found(attention, tensors, user, bias, mask, stacked)


def _scaled(query: Any) -> tuple[Any, float]:
    factor = _factor(query) if isinstance(query, Node) else None
    return (query, 1.0) if factor is None else (query.args[0], factor)


def _is_turned(node: object, product: object) -> bool:
    last = (*_LAST_TWO, {1, 2}) if product is _aten.bmm.default else _LAST_TWO
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
