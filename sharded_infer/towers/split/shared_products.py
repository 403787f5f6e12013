"""Products of each pair's values with one request's: one product for all its pairs.

    pairs [C, q, d] x shared [1, d, L]    ->   [C * q, d] x [d, L]

C small products would each read a copy of the shared operand.
"""

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor
from torch.fx import Node

from sharded_infer.towers.lowering.rewriting import ATTENTION_ARGUMENTS
from sharded_infer.towers.program.operators import Operator
from sharded_infer.towers.split.parts import Known, Value
from sharded_infer.towers.split.shape_rules import Rule
from sharded_infer.towers.split.sizes import Layout
from sharded_infer.towers.split.split_graphs import SplitGraphs

_aten = torch.ops.aten
_BY_SAMPLE: Final = Layout(0, 1)


def times_shared(values: Tensor, shared: Tensor, block: int) -> Tensor:
    """Product of each pair's matrices with one request's.

    Args:
        values: `[C * block, ..., q, d]`.
        shared: `[block, ..., d, n]`.
        block: matrices of a pair along the first axis, such as heads.

    Returns:
        `[C * block, ..., q, n]`.
    """
    if block > 1:
        by_pair = values.reshape(-1, block, *values.shape[1:])
        made = times_shared(by_pair, shared.unsqueeze(0), 1)
        return made.flatten(0, 1)
    if values.dim() == 3:
        return values @ shared[0]
    return _unfolded(_folded(values) @ shared[0], values)


def attention_to_shared(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None
) -> Tensor:
    """`scaled_dot_product_attention` of each pair to one request's keys, `[C, H, q, d]`.

    Args:
        query: `[C, H, q, d]`.
        key: `[1, H, L, d]`, and `value` too.
        mask: `[1 or none, 1 or H, 1 or q, L]`.
    """
    if mask is not None and mask.shape[-2] != 1:
        mask = mask.unsqueeze(-3).expand(*mask.shape[:-2], len(query), -1, -1).flatten(-3, -2)
    made = torch.nn.functional.scaled_dot_product_attention(
        _folded(query).unsqueeze(0), key, value, attn_mask=mask, scale=scale
    )
    return _unfolded(made[0], query)


def _folded(values: Tensor) -> Tensor:
    """`[C, H, q, d]` as `[H, C * q, d]`."""
    return values.movedim(0, -3).flatten(-3, -2)


def _unfolded(made: Tensor, values: Tensor) -> Tensor:
    """`[H, C * q, n]` as `[C, H, q, n]`."""
    sizes = *made.shape[:-2], len(values), values.shape[-2], made.shape[-1]
    return made.reshape(sizes).movedim(-3, 0)


def _sum(graphs: SplitGraphs, node: Node) -> Known | None:
    if node.kwargs or len(node.args) != 3 or not isinstance(node.args[0], Node):
        return None
    made = _product_of(graphs, *node.args[1:])
    if made is None:
        return None
    added = graphs.at(False, node.args[0], repeated=True)
    return Value(False, graphs.call(False, _aten.add.Tensor, made, added))


def _product(graphs: SplitGraphs, node: Node) -> Known | None:
    made = _product_of(graphs, *node.args)
    return None if made is None else Value(False, made)


def _product_of(graphs: SplitGraphs, first: object, second: object) -> Node | None:
    layout = graphs.sizes.layout(first) if isinstance(first, Node) else None
    if layout is None or layout.axis != 0 or layout != graphs.sizes.layout(second):  # type: ignore[arg-type]
        return None
    if graphs.sizes.rank(first) != graphs.sizes.rank(second) or graphs.sizes.rank(first) < 3:  # type: ignore[arg-type]
        return None
    mine, shared = graphs.value(first, by_request=False), graphs.value(second, by_request=True)
    if mine is not None and shared is not None:
        given = graphs.given(shared.node)
        return graphs.call(False, times_shared, mine.node, given, layout.block)
    shared, mine = graphs.value(first, by_request=True), graphs.value(second, by_request=False)
    if mine is None or shared is None:
        return None
    turned = (
        graphs.call(False, _aten.transpose.int, one, -2, -1)
        for one in (mine.node, graphs.given(shared.node))
    )
    made = graphs.call(False, times_shared, *turned, layout.block)
    return graphs.call(False, _aten.transpose.int, made, -2, -1)


def _einsum(graphs: SplitGraphs, node: Node) -> Known | None:
    equation, operands = node.args[:2]
    if not isinstance(equation, str) or not isinstance(operands, list | tuple):
        return None
    taken, _, result = equation.replace(" ", "").partition("->")
    terms = taken.split(",")
    if len(operands) != 2 or len(terms) != 2 or not result or "." in equation:
        return None
    if any(graphs.sizes.layout(one) != _BY_SAMPLE for one in operands):  # type: ignore[arg-type]
        return None
    pair = [graphs.value(one, by_request=False) for one in operands]
    shared = [graphs.value(one, by_request=True) for one in operands]
    samples = result[0]
    if sum(one is not None for one in pair) != 1 or sum(one is not None for one in shared) != 1:
        return None
    # A vector of each request has rows of its own.
    if any(one is not None and len(term) < 3 for one, term in zip(shared, terms, strict=True)):
        return None
    if any(not term.startswith(samples) or samples in term[1:] for term in terms):
        return None
    arguments: list[Any] = []
    for position, (mine, one) in enumerate(zip(pair, shared, strict=True)):
        if mine is not None:
            arguments.append(mine.node)
        elif one is not None:
            terms[position] = terms[position][1:]
            arguments.append(graphs.call(False, _aten.select.int, graphs.given(one.node), 0, 0))
    made = graphs.call(False, _aten.einsum.default, f"{','.join(terms)}->{result}", arguments)
    return Value(False, made)


def _attention(graphs: SplitGraphs, node: Node) -> Known | None:
    given: dict[str, Any] = dict(zip(ATTENTION_ARGUMENTS, node.args, strict=False))
    given |= node.kwargs
    query = graphs.value(given["query"], by_request=False)
    key, value = (graphs.value(given[name], by_request=True) for name in ("key", "value"))
    if query is None or key is None or value is None:
        return None
    if given.get("is_causal") or given.get("enable_gqa") or graphs.sizes.rank(given["query"]) != 4:
        return None
    if any(graphs.sizes.layout(given[n]) != _BY_SAMPLE for n in ("query", "key", "value")):
        return None
    mask = given.get("attn_mask")
    if mask is not None:
        held = graphs.value(mask, by_request=True)
        known = graphs.sizes.layout(mask) == _BY_SAMPLE or graphs.sizes.is_alike(mask)
        if held is None or not known:
            return None
        mask = graphs.given(held.node)
    keys = (graphs.given(one.node) for one in (key, value))
    made = graphs.call(False, attention_to_shared, query.node, *keys, mask, given.get("scale"))
    return Value(False, made)


SHARED_PRODUCT_RULES: Final[Mapping[Operator, Rule]] = {
    _aten.baddbmm.default: _sum,
    _aten.bmm.default: _product,
    _aten.matmul.default: _product,
    _aten.einsum.default: _einsum,
    _aten.scaled_dot_product_attention.default: _attention,
}
