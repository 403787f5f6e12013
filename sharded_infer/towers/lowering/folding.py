"""Folding of constants and of slices without effect.

Parts of a constant are computed once: `nn.MultiheadAttention` holds the weights of its queries,
keys and values as one, and only a constant weight can be packed or lowered.
"""

import operator
import sys
from typing import Final

import torch
from torch.fx import GraphModule, Node

from sharded_infer.towers.lowering.constants import add_constant, constant_of, give_up_unused

_aten = torch.ops.aten
_CUTTING: Final = (
    *(_aten.split_with_sizes.default, _aten.split.Tensor, _aten.split.sizes),
    *(_aten.chunk.default, _aten.unbind.int),
)
_CHOOSING: Final = (_aten.slice.Tensor, _aten.select.int, _aten.narrow.default)


def fold_weights(program: GraphModule) -> int:
    """Replaces parts of constants by constants, in place; returns their number."""
    made = 0
    for node in list(program.graph.nodes):
        part = _part(program, node)
        if part is None:
            continue
        with program.graph.inserting_before(node):
            held = add_constant(program, "_folded", part.detach().clone(), persistent=True)
        node.replace_all_uses_with(held)
        made += 1
    if made:
        program.graph.eliminate_dead_code()
        give_up_unused(program)
        program.recompile()
    return made


def drop_whole_slices(program: GraphModule) -> int:
    """Removes each `x[:]`, in place; returns their number."""
    made = 0
    for node in program.graph.find_nodes(op="call_function", target=_aten.slice.Tensor):
        if node.args[2:] == (0, sys.maxsize) and not node.kwargs:
            node.replace_all_uses_with(node.args[0])
            program.graph.erase_node(node)
            made += 1
    if made:
        program.recompile()
    return made


def _part(program: GraphModule, node: Node) -> torch.Tensor | None:
    if node.target in _CHOOSING:
        return _called(program, node)
    if node.target is not operator.getitem:
        return None
    source, position = node.args
    if not isinstance(source, Node) or source.target not in _CUTTING:
        return None
    parts = _called(program, source)
    return None if parts is None else parts[position]  # type: ignore[index]


def _called(program: GraphModule, node: Node) -> torch.Tensor | None:
    """An operator's result on a constant and numbers; None if it has other arguments."""
    constant = constant_of(program, node.args[0])
    if constant is None or any(isinstance(one, Node) for one in node.all_input_nodes[1:]):
        return None
    made: torch.Tensor = node.target(constant, *node.args[1:], **node.kwargs)  # type: ignore[operator]
    return made
