"""Convolutions over positions that see one of them, as products of rows.

    relu(conv1d(x.transpose(1, 2), W[:, :, None], b))   ->  relu(linear(x, W, b)).transpose(1, 2)

SASRec's layers behind an attention are written so. Products are packed and fused; convolutions are
not.
"""

from typing import Any, Final

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from sharded_infer.towers.lowering.constants import add_constant, constant_of, give_up_unused

_aten = torch.ops.aten
_CONVOLUTION: Final = _aten.conv1d.default
# Stride, padding, dilation and groups of a convolution over single positions.
_PLAIN: Final = ([1], [0], [1], 1)
_BY_NUMBER: Final = (
    *(_aten.relu.default, _aten.gelu.default, _aten.silu.default, _aten.sigmoid.default),
    *(_aten.tanh.default, _aten.dropout.default),
)


def multiply_pointwise(program: GraphModule) -> int:
    """Replaces convolutions that see one position, in place; returns their number."""
    made = 0
    for node in program.graph.find_nodes(op="call_function", target=_CONVOLUTION):
        given: tuple[Any, ...] = (*node.args, *(None, *_PLAIN)[len(node.args) - 2 :])
        source, weight, bias, *options = given
        held = constant_of(program, weight)
        if held is None or held.dim() != 3 or held.shape[2] != 1 or node.kwargs:
            continue
        if tuple(options) != _PLAIN:
            continue
        _replace(program, node, source, held.detach().squeeze(2).contiguous(), bias)
        made += 1
    if made:
        # Also dropouts, which torch takes for drawing random numbers here.
        program.graph.eliminate_dead_code(lambda node: node.is_impure(impure_random=False))
        give_up_unused(program)
        program.recompile()
    return made


def _replace(program: GraphModule, node: Node, source: Any, weight: Tensor, bias: Any) -> None:
    graph, last = program.graph, node
    with graph.inserting_before(node):
        rows = graph.call_function(_aten.transpose.int, (source, 1, 2))
        held = add_constant(program, "_pointwise", weight)
        made = graph.call_function(_aten.linear.default, (rows, held, bias))
    # Elementwise operators commute with the transposition.
    while len(last.users) == 1 and (user := next(iter(last.users))).target in _BY_NUMBER:
        with graph.inserting_before(user):
            made = graph.call_function(user.target, (made, *user.args[1:]), user.kwargs)
        last = user
    with graph.inserting_before(last):
        turned = graph.call_function(_aten.transpose.int, (made, 1, 2))
    last.replace_all_uses_with(turned)
