"""Products of a value that is part by request: the weight's columns are split with it.

    linear(cat(u, p), [U P], b)  ->  linear(u, U, b) once a request, + linear(p, P) for each pair

Packed weights are unpacked once. Bytes of an int8 product are split as they are; the halves'
results are added in fp32.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

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
from sharded_infer.towers.split.distributed_products import Multiply, distributed
from sharded_infer.towers.split.parts import Known, Parts, Value, positions_of
from sharded_infer.towers.split.shape_rules import Rule
from sharded_infer.towers.split.split_graphs import SplitGraphs

_aten = torch.ops.aten
_mkldnn_linear = torch.ops.mkldnn._linear_pointwise.default
_qlinear = torch.ops.onednn.qlinear_pointwise.default
# Batch size that layouts are chosen for.
_BATCH: Final = 256
# By request, and by pair.
_FLAGS: Final = (True, False)


def weight_size(graphs: SplitGraphs, node: Node) -> int:
    """Numbers of a product's constant weight; 0 for other operators."""
    module = module_of(graphs.program, node, CompiledProduct)
    if module is not None:
        return math.prod(module.product.weight.shape)
    position = _WEIGHT_POSITIONS.get(node.target)
    weight = None if position is None else constant_of(graphs.program, node.args[position])
    return 0 if weight is None else weight.numel()


def _source(graphs: SplitGraphs, node: Node) -> Parts | None:
    """A product's input, if its columns are by request or by pair."""
    parts = graphs.parts(node.args[0])
    shape = None if parts is None else graphs.sizes.shape(node.args[0])  # type: ignore[arg-type]
    return parts if parts is not None and shape is not None and parts.dim == len(shape) else None


def _halved(
    graphs: SplitGraphs,
    node: Node,
    unpack: Callable[[], Tensor],
    multiply: Multiply,
    *,
    distribute: bool,
) -> Node | None:
    """The product as a sum by pair; None if nothing is by request.

    `unpack` gives the `[N, K]` weight. With `distribute`, a concatenation's terms may be divided.
    """
    parts = _source(graphs, node)
    if parts is None and not distribute:
        return None
    weight = unpack()
    total = distributed(graphs, node.args[0], weight, multiply) if distribute else None
    if total is not None or parts is None:
        return total
    columns = {flag: weight[:, positions_of(parts.runs, flag)].contiguous() for flag in _FLAGS}
    of_request = multiply(True, parts.request, columns[True], True)
    of_pair = multiply(False, parts.pair, columns[False], False)
    graphs.saved_products += columns[True].numel()
    return graphs.call(False, _aten.add.Tensor, of_pair, graphs.rows(of_request))


def _finished(
    graphs: SplitGraphs, total: Node, *, relu: bool, low: torch.dtype | ByteLevels | None
) -> Value:
    """The steps after a product, on the sum of its halves."""
    if relu:
        total = graphs.call(False, _aten.relu.default, total)
    if isinstance(low, torch.dtype):
        total = graphs.call(False, _aten.to.dtype, total, low)
    elif low is not None:
        step = graphs.module(False, Step(keep=False, low=low), total)
        total = graphs.item(False, step, 1)
    return Value(False, total)


def _unpacked(weight: Tensor) -> Tensor:
    return weight.to_dense() if weight.is_mkldnn else weight.detach()


def _linear(graphs: SplitGraphs, node: Node) -> Known | None:
    weight = constant_of(graphs.program, node.args[1])
    packed = node.target is _mkldnn_linear
    if weight is None or (packed and node.args[3:] != ("none", [], "")):
        return None
    bias = (*node.args, None)[2]
    if bias is not None and constant_of(graphs.program, bias) is None:
        return None

    def multiply(flag: bool, source: Node, held: Tensor, adds: bool) -> Node:
        if packed:
            held = torch.ops.mkldnn._reorder_linear_weight(held, _BATCH)
        added = graphs.at(flag, bias) if adds and isinstance(bias, Node) else None
        arguments = source, graphs.constant(flag, held), added, *node.args[3:]
        return graphs.call(flag, node.target, *arguments)

    total = _halved(graphs, node, partial(_unpacked, weight), multiply, distribute=graphs.alone)
    return None if total is None else Value(False, total)


def _int8(graphs: SplitGraphs, node: Node) -> Known | None:
    """Packed products of bytes; a result in bytes is rounded after the sum."""
    weight = constant_of(graphs.program, node.args[3])
    source_scale, zero_point, _, scale, zeros, bias, out_scale, out_zero, dtype, activation = (
        node.args[1:11]
    )
    if weight is None or source_scale != 1.0 or out_scale != 1.0:
        return None
    if activation not in ("none", "relu") or not isinstance(out_zero, int):
        return None

    def multiply(flag: bool, source: Node, held: Tensor, adds: bool) -> Node:
        packed = torch.ops.onednn.qlinear_prepack(held, [_BATCH, held.shape[1]])
        constants = [graphs.at(flag, one) for one in (scale, zeros)]  # type: ignore[arg-type]
        added = graphs.at(flag, bias) if adds and isinstance(bias, Node) else None
        return graphs.call(
            flag,
            _qlinear,
            *(source, 1.0, zero_point, graphs.constant(flag, packed), *constants, added),
            *(1.0, 0, torch.float32, "none", [], ""),
        )

    total = _halved(graphs, node, lambda: _unpacked(weight).t(), multiply, distribute=False)
    if total is None:
        return None
    low = ByteLevels(torch.ones(weight.shape[1]), out_zero) if dtype is torch.uint8 else None
    return _finished(graphs, total, relu=activation == "relu", low=low)


def split_product(graphs: SplitGraphs, node: Node, product: Product) -> Known | None:
    """Compiled products: their halves are added in fp32, before the following steps."""
    poison = [graphs.at(False, one) for one in node.args[1:] if isinstance(one, Node)]

    def multiply(flag: bool, source: Node, columns: Tensor, adds: bool) -> Node:
        half = product.with_weight(PackedWeight(columns))
        made = CompiledProduct(half if adds else half.without_bias())
        return graphs.module(flag, made, source, *(() if flag else poison))

    distribute = graphs.alone and not poison
    total = _halved(graphs, node, product.weight.unpacked, multiply, distribute=distribute)
    if total is None:
        return None
    return _finished(graphs, total, relu=product.relu, low=product.low)


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


_WEIGHT_POSITIONS: Final[Mapping[object, int]] = {
    _aten.linear.default: 1,
    _mkldnn_linear: 1,
    _qlinear: 3,
}

PRODUCT_RULES: Final[Mapping[Operator, Rule]] = {
    _aten.linear.default: _linear,
    _mkldnn_linear: _linear,
    _qlinear: _int8,
}
