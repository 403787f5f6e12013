"""Products of a value that is part by request: the weight's columns are split with it.

    linear(cat(u, p), [U P], b)  ->  linear(u, U, b) once a request, + linear(p, P) for each pair

Packed weights are unpacked once. Bytes of an int8 product are split as they are; the halves'
results are added in fp32.
"""

import math
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor
from torch.fx import Node

from kernels.dense_step import ByteLevels
from kernels.product import PackedWeight, Product
from sharded_infer.towers.lowering.compiled_products import CompiledProduct
from sharded_infer.towers.lowering.constants import constant_of
from sharded_infer.towers.lowering.fused_steps import Step
from sharded_infer.towers.lowering.rewriting import module_of
from sharded_infer.towers.program.operators import Operator
from sharded_infer.towers.split.distributed_products import distributed
from sharded_infer.towers.split.parts import Known, Parts, Value, positions_of
from sharded_infer.towers.split.shape_rules import Rule
from sharded_infer.towers.split.split_graphs import SplitGraphs

_aten = torch.ops.aten
_mkldnn_linear = torch.ops.mkldnn._linear_pointwise.default
_qlinear = torch.ops.onednn.qlinear_pointwise.default
# Batch size that layouts are chosen for.
_BATCH: Final = 256


def weight_size(graphs: SplitGraphs, node: Node) -> int:
    """Numbers of a product's constant weight; 0 for other operators."""
    module = module_of(graphs.program, node, CompiledProduct)
    if module is not None:
        return math.prod(module.product.weight.shape)
    position = _WEIGHT_POSITIONS.get(node.target)
    weight = None if position is None else constant_of(graphs.program, node.args[position])
    return 0 if weight is None else weight.numel()


def _columns(weight: Tensor, parts: Parts, *, transposed: bool = False) -> dict[bool, Tensor]:
    plain = weight.to_dense() if weight.is_mkldnn else weight.detach()
    plain = plain.t() if transposed else plain
    return {flag: plain[:, positions_of(parts.runs, flag)].contiguous() for flag in (True, False)}


def _source(graphs: SplitGraphs, node: Node) -> Parts | None:
    source = node.args[0]
    known = graphs.known.get(source) if isinstance(source, Node) else None
    shape = graphs.shape(source) if isinstance(source, Node) else None
    if not isinstance(known, Parts) or shape is None or known.dim != len(shape):
        return None
    return known


def _linear(graphs: SplitGraphs, node: Node) -> Known | None:
    weight = constant_of(graphs.program, node.args[1])
    packed = node.target is _mkldnn_linear
    if weight is None or (packed and node.args[3:] != ("none", [], "")):
        return None
    bias = (*node.args, None)[2]
    if bias is not None and constant_of(graphs.program, bias) is None:
        return None

    def product(flag: bool, source: Node, held: Tensor, adds: bool) -> Node:
        if packed:
            held = torch.ops.mkldnn._reorder_linear_weight(held, _BATCH)
        added = graphs.at(flag, bias) if adds and isinstance(bias, Node) else None
        rest = (*(added,), *node.args[3:])
        return graphs.call(flag, node.target, source, graphs.constant(flag, held), *rest)

    if graphs.alone:
        plain = weight.to_dense() if weight.is_mkldnn else weight.detach()
        total = distributed(graphs, node.args[0], plain, product)
        if total is not None:
            return Value(False, total)
    parts = _source(graphs, node)
    if parts is None:
        return None
    columns = _columns(weight, parts)
    of_request = product(True, parts.request, columns[True], True)
    of_pair = product(False, parts.pair, columns[False], False)
    graphs.saved_products += columns[True].numel()
    return Value(False, graphs.call(False, _aten.add.Tensor, of_pair, graphs.rows(of_request)))


def _int8(graphs: SplitGraphs, node: Node) -> Known | None:
    """Packed products of bytes; a result in bytes is rounded after the sum."""
    parts = _source(graphs, node)
    weight = constant_of(graphs.program, node.args[3])
    if parts is None or weight is None:
        return None
    source_scale, zero_point, _, scale, zeros, bias, out_scale, out_zero, dtype, activation = (
        node.args[1:11]
    )
    if source_scale != 1.0 or out_scale != 1.0 or activation not in ("none", "relu"):
        return None
    if not isinstance(out_zero, int):
        return None
    columns = _columns(weight, parts, transposed=True)

    def product(flag: bool, source: Node, added: Any) -> Node:
        held = columns[flag]
        packed = torch.ops.onednn.qlinear_prepack(held, [_BATCH, held.shape[1]])
        constants = [graphs.at(flag, one) for one in (scale, zeros)]  # type: ignore[arg-type]
        return graphs.call(
            flag,
            _qlinear,
            *(source, 1.0, zero_point, graphs.constant(flag, packed), *constants, added),
            *(1.0, 0, torch.float32, "none", [], ""),
        )

    added = graphs.at(True, bias) if isinstance(bias, Node) else None
    of_request = product(True, parts.request, added)
    total = graphs.call(
        False, _aten.add.Tensor, product(False, parts.pair, None), graphs.rows(of_request)
    )
    graphs.saved_products += columns[True].numel()
    if activation == "relu":
        total = graphs.call(False, _aten.relu.default, total)
    if dtype is not torch.uint8:
        return Value(False, total)
    levels = ByteLevels(torch.ones(len(columns[True])), out_zero)
    step = graphs.module(False, Step(keep=False, low=levels), total)
    return Value(False, graphs.item(False, step, 1))


def split_product(graphs: SplitGraphs, node: Node, product: Product) -> Known | None:
    """Compiled products: their halves are added in fp32, before the following steps."""
    poison = [graphs.at(False, one) for one in node.args[1:] if isinstance(one, Node)]

    def multiply(flag: bool, source: Node, columns: Tensor, adds: bool) -> Node:
        half = product.with_weight(PackedWeight(columns))
        made = CompiledProduct(half if adds else half.without_bias())
        return graphs.module(flag, made, source, *(() if flag else poison))

    total = None
    if graphs.alone and not poison:
        total = distributed(graphs, node.args[0], product.weight.unpacked(), multiply)
    if total is None:
        parts = _source(graphs, node)
        if parts is None:
            return None
        columns = _columns(product.weight.unpacked(), parts)
        of_request = multiply(True, parts.request, columns[True], True)
        total = multiply(False, parts.pair, columns[False], False)
        total = graphs.call(False, _aten.add.Tensor, total, graphs.rows(of_request))
        graphs.saved_products += columns[True].numel()
    if product.relu:
        total = graphs.call(False, _aten.relu.default, total)
    if isinstance(product.low, torch.dtype):
        total = graphs.call(False, _aten.to.dtype, total, product.low)
    elif product.low is not None:
        step = graphs.module(False, Step(keep=False, low=product.low), total)
        total = graphs.item(False, step, 1)
    return Value(False, total)


def split_step(graphs: SplitGraphs, node: Node, step: Step) -> Known | None:
    """A pass to bytes: each column by its own level, and a row's NaNs from both parts."""
    parts = _source(graphs, node)
    if parts is None or len(node.args) != 1 or not isinstance(step.low, ByteLevels) or step.keeps:
        return None
    made = {}
    for flag, source in ((True, parts.request), (False, parts.pair)):
        inverse = step.low.inverse_scale[positions_of(parts.runs, flag)].contiguous()
        levels = ByteLevels(inverse, step.low.zero_point)
        made[flag] = graphs.module(flag, Step(keep=False, low=levels), source)
    low = Parts(
        parts.dim, graphs.item(True, made[True], 1), graphs.item(False, made[False], 1), parts.runs
    )
    poisons = graphs.item(False, made[False], 2), graphs.rows(graphs.item(True, made[True], 2))
    poison = Value(False, graphs.call(False, _aten.add.Tensor, *poisons))
    return low, low, poison


_WEIGHT_POSITIONS: Final[Mapping[Any, int]] = {
    _aten.linear.default: 1,
    _mkldnn_linear: 1,
    _qlinear: 3,
}

PRODUCT_RULES: Final[Mapping[Operator, Rule]] = {
    _aten.linear.default: _linear,
    _mkldnn_linear: _linear,
    _qlinear: _int8,
}
