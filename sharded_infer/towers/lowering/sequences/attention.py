"""Attention by one pass, in towers over sequences.

    scaled_dot_product_attention(q, k, v, is_causal)              ->  attention(q, k, v)
    silu(q @ k.mT + bias).masked_fill(mask, 0) / n @ v            ->  attention(q, k, v, bias, mask)
    softmax(hide_later(q @ k.mT * scale)) @ v                     ->  attention(q, k, v)

See `kernels.sequences.attention`. The second is that of HSTU (Zhai et al. 2024, arXiv:2402.17152).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeGuard

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from kernels.sequences.attention import Attention, Weights
from sharded_infer.towers.lowering.constants import add_call
from sharded_infer.towers.lowering.rewriting import (
    ATTENTION_ARGUMENTS,
    COPIES,
    RESHAPES,
    module_of,
    only_user,
    remove_unused,
)
from sharded_infer.towers.lowering.sequences.row_operators import RowColumns, RowOperators
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


def join_heads(program: GraphModule, inputs: Iterable[Sequence[Tensor]]) -> int:
    """Lets passes access columns of all heads without views, in place; returns their number.

    The program's attentions are fused; `inputs` are valid ones of several sizes, for dtypes and
    shapes.
    """
    rows = RowOperators(program, [kinds_of(program, one) for one in inputs])
    joined = 0
    for node in list(program.graph.nodes):
        found = module_of(program, node, AttentionPass)
        reads = None if found is None else [_divided(rows, one) for one in node.args[:3]]
        ends = [end for user in node.users if (end := _joined_again(rows, user)) is not None]
        if found is None or reads is None or None in reads or len(ends) != len(node.users):
            continue
        [heads, *others] = {one.heads for one in reads if one is not None}
        if others:
            continue
        columns = [(one.columns.first, one.columns.width // heads) for one in reads if one]
        heads_pass = HeadsPass(found.attention, heads, columns)
        given = [one.columns.node for one in reads if one]
        with program.graph.inserting_before(node):
            made = add_call(program, "_heads", heads_pass, (*given, *node.args[3:]))
        for end in ends:
            end.replace_all_uses_with(made)
        joined += 1
    if joined:
        remove_unused(program)
    return joined


class _Divided(NamedTuple):
    columns: RowColumns
    heads: int


def _divided(rows: RowOperators, turned: object) -> _Divided | None:
    """Source of `[B, H, L, d]`, which is `[B, L, H * d]` divided and transposed."""
    if not _is_swap(turned):
        return None
    divided: Any = turned.args[0]
    columns = rows.columns(divided.args[0]) if divided.target in RESHAPES else None
    if columns is None or not _same_numbers(rows, divided, divided.args[0]):
        return None
    return _Divided(columns, rows.shape(divided)[2])  # type: ignore[index]


def _joined_again(rows: RowOperators, turned: Node) -> Node | None:
    """The end of `[B, H, L, n]` that is transposed and joined to `[B, L, H * n]`."""
    if not _is_swap(turned):
        return None
    node = turned
    while (user := only_user(node)) is not None and user.target in COPIES:
        node = user
    if user is None or user.target not in RESHAPES or not _same_numbers(rows, node, user):
        return None
    return user


def _is_swap(node: object) -> TypeGuard[Node]:
    return (
        isinstance(node, Node)
        and node.target is _aten.transpose.int
        and set(node.args[1:]) in ({1, 2}, {-3, -2})
    )


def _same_numbers(rows: RowOperators, divided: Node, whole: object) -> bool:
    """True if `[B, L, H, d]` is the other value, `[B, L, H * d]`, divided."""
    shape, joined = rows.shape(divided), rows.shape(whole)
    if shape is None or joined is None or len(shape) != 4:
        return False
    return joined == (*shape[:2], shape[2] * shape[3])


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
