"""A low-precision program in fp32, for processors that are slower in the low precision.

    linear(to(x, bf16), W in bf16)     ->  linear(x, W in fp32)
    int8_linear(x, W, s, b, i, z)      ->  linear(x, (W * i) * s, b)

Weights keep their published values. Values between products are no longer rounded, so that scores
are at least as close to the trained module's.
"""

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate

from sharded_infer.towers.lowering.constants import add_constant, constant_of
from sharded_infer.towers.lowering.int8_packing import Int8Product
from sharded_infer.towers.lowering.rewriting import remove_unused
from sharded_infer.towers.lowering.tensor_kinds import kinds_of
from sharded_infer.towers.program.int8_linear import INT8_LINEAR

_aten = torch.ops.aten
_FLOATS: Final = (torch.float32, torch.bfloat16, torch.float16)
_CASTS: Final = tuple((dtype,) for dtype in _FLOATS)


def compute_in_fp32(program: GraphModule, inputs: Sequence[Tensor]) -> None:
    """Raises every bf16, fp16 and int8 product to fp32, in place; any valid `inputs` give dtypes.

    Raises:
        TowerError: an int8 product without constant integers and scales of fitting shapes.
    """
    kinds = kinds_of(program, inputs)
    raised: dict[str, str] = {}
    for node in list(program.graph.nodes):
        if node.op == "get_attr":
            _raise_constant(program, node, raised)
        elif node.target is INT8_LINEAR:
            _raise_product(program, node)
        elif node.op == "call_function":
            source = node.args[0] if node.args else None
            dtype = kinds[source][0] if isinstance(source, Node) and source in kinds else None
            is_cast = node.target is _aten.to.dtype and node.args[1:2] in _CASTS
            if is_cast and dtype in _FLOATS:
                node.replace_all_uses_with(source)
                continue
            node.args = map_aggregate(node.args, _raised_dtype)
            node.kwargs = map_aggregate(node.kwargs, _raised_dtype)
    remove_unused(program)


def _raised_dtype(argument: Any) -> Any:
    return torch.float32 if argument in _FLOATS[1:] else argument


def _raise_constant(program: GraphModule, node: Node, raised: dict[str, str]) -> None:
    constant = constant_of(program, node)
    if constant is None or constant.dtype not in _FLOATS[1:]:
        return
    with program.graph.inserting_before(node):
        if (name := str(node.target)) in raised:
            made = program.graph.get_attr(raised[name])
        else:
            made = add_constant(program, "_fp32", constant.detach().to(torch.float32))
            raised[name] = str(made.target)
    node.replace_all_uses_with(made)


def _raise_product(program: GraphModule, node: Node) -> None:
    product = Int8Product.of(program, node)
    weight = product.weight.detach().to(torch.float32) * product.levels.inverse_scale.detach()
    weight *= product.weight_scale.detach()[:, None]
    with program.graph.inserting_before(node):
        held = add_constant(program, "_fp32", weight)
        given = (node.args[0], held, node.args[3])
        made = program.graph.call_function(_aten.linear.default, given)
    node.replace_all_uses_with(made)
