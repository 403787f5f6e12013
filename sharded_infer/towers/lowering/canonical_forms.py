"""Rewrites to forms that the other passes look for.

slice(W), chunk(W)[1], W a constant     ->  a constant
x[:]                                    ->  x
conv1d(x.transpose(1, 2), W of one position, b)  ->  linear(x, W, b).transpose(1, 2)
biases[clamp(positions, 0, n)]          ->  index_select(biases, 0, positions)
sum(x, 1)                               ->  squeeze(sum(x, 1, keepdim=True), 1)
sigmoid(squeeze(x, 1))                  ->  squeeze(sigmoid(x), 1)
"""

import operator
import sys
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch.fx import GraphModule, Node

from sharded_infer.towers.lowering.constants import add_constant, constant_of
from sharded_infer.towers.lowering.rewriting import (
    ACTIVATIONS,
    CLAMPS,
    DIVISIONS,
    move_behind,
    remove_unused,
    rewrite,
)
from sharded_infer.towers.lowering.tensor_kinds import Kind

_aten = torch.ops.aten
_CHOOSING: Final = (_aten.slice.Tensor, _aten.select.int, _aten.narrow.default)
# Stride, padding, dilation and groups of a convolution over single positions.
_PLAIN: Final = ([1], [0], [1], 1)
_ELEMENTWISE: Final = (
    *(*ACTIVATIONS, _aten.gelu.default, _aten.tanh.default, _aten.dropout.default),
)

# Operators whose results are contiguous whatever their inputs are.
_CONTIGUOUS: Final = (
    *(_aten.linear.default, _aten.layer_norm.default, _aten.cat.default, _aten.matmul.default),
)


def fold_weights(program: GraphModule) -> int:
    """Replaces parts of constants by constants, in place; returns their number.

    `nn.MultiheadAttention` holds the weights of its queries, keys and values as one, and only a
    constant weight can be packed or lowered.
    """
    return rewrite(program, dict.fromkeys((*_CHOOSING, operator.getitem), _folded))


def drop_whole_slices(program: GraphModule) -> int:
    """Removes each `x[:]`, in place; returns their number."""

    def whole(_: GraphModule, node: Node) -> Node | None:
        is_whole = node.args[2:] == (0, sys.maxsize) and not node.kwargs
        return node.all_input_nodes[0] if is_whole else None

    return rewrite(program, {_aten.slice.Tensor: whole})


def multiply_pointwise(program: GraphModule) -> int:
    """Replaces convolutions that see one position by products; returns their number.

    SASRec's layers behind an attention are written so. Products are packed and fused; convolutions
    are not.
    """
    made = 0
    for node in program.graph.find_nodes(op="call_function", target=_aten.conv1d.default):
        turned = _product(program, node)
        if turned is not None:
            node.replace_all_uses_with(turned)
            product = turned.all_input_nodes[0]
            move_behind(program.graph, turned, _ELEMENTWISE)
            _reshape_behind(product)
            made += 1
    if made:
        remove_unused(program)
    return made


def _reshape_behind(product: Node) -> None:
    """Replaces views of a product, which is turned around and not contiguous, by reshapes."""
    waiting, seen = [product], {product}
    while waiting:
        for user in waiting.pop().users:
            if user in seen or user.target in _CONTIGUOUS:
                continue
            if user.target is _aten.view.default:
                user.target = _aten.reshape.default
            seen.add(user)
            waiting.append(user)


def select_biases(program: GraphModule) -> int:
    """Replaces reads of constants `[n]`, in place; returns their number.

    Three times as fast: torch's `index` also allows negative indices, and computes each number's
    place by itself.
    """
    return rewrite(program, {_aten.index.Tensor: _selected})


def keep_columns(program: GraphModule, kinds: Mapping[Node, Kind]) -> int:
    """Drops a score's column behind its last operators, in place; returns the operators moved.

    A row step has rows and columns: so the pass that computes a row also ends its score. `kinds`
    are those of a run.
    """
    graph, moved = program.graph, 0
    for node in list(graph.nodes):
        source = node.args[0] if node.args else None
        shape = kinds[source][1] if isinstance(source, Node) and source in kinds else torch.Size()
        if len(shape) < 2 or node.kwargs:
            continue
        last = -1, len(shape) - 1
        if node.target is _aten.squeeze.dim and shape[-1] == 1 and node.args[1] in last:
            node.args = source, -1
            moved += move_behind(graph, node, ACTIVATIONS)
        elif node.target is _aten.sum.dim_IntList and _drops_last(node, last):
            with graph.inserting_before(node):
                kept = graph.call_function(node.target, (source, [-1], True))
                dropped = graph.call_function(_aten.squeeze.dim, (kept, -1))
            node.replace_all_uses_with(dropped)
            moved += 1 + move_behind(graph, dropped, ACTIVATIONS)
    if moved:
        remove_unused(program)
    return moved


def _folded(program: GraphModule, node: Node) -> Node | None:
    source = node.all_input_nodes[0]
    if node.target in _CHOOSING:
        part = _called(program, node)
    elif source.target in DIVISIONS:
        parts: Any = _called(program, source)
        part = None if parts is None else parts[node.args[1]]
    else:
        return None
    if part is None:
        return None
    return add_constant(program, "_folded", part.detach().clone(), persistent=True)


def _called(program: GraphModule, node: Node) -> torch.Tensor | None:
    """An operator's result on a constant and numbers; None if it has other arguments."""
    constant = constant_of(program, node.args[0])
    if constant is None or len(node.all_input_nodes) > 1:
        return None
    made: torch.Tensor = node.target(constant, *node.args[1:], **node.kwargs)  # type: ignore[operator]
    return made


def _product(program: GraphModule, node: Node) -> Node | None:
    given: tuple[Any, ...] = (*node.args, *(None, *_PLAIN)[len(node.args) - 2 :])
    source, weight, bias, *options = given
    held = constant_of(program, weight)
    if held is None or held.dim() != 3 or held.shape[2] != 1 or node.kwargs:
        return None
    if tuple(options) != _PLAIN:
        return None
    graph = program.graph
    with graph.inserting_before(node):
        rows = graph.call_function(_aten.transpose.int, (source, 1, 2))
        of_rows = add_constant(program, "_pointwise", held.detach().squeeze(2).contiguous())
        made = graph.call_function(_aten.linear.default, (rows, of_rows, bias))
        return graph.call_function(_aten.transpose.int, (made, 1, 2))


def _selected(program: GraphModule, node: Node) -> Node | None:
    biases, positions = node.args[0], node.args[1][0]  # type: ignore[index]
    constant = constant_of(program, biases)
    if constant is None or constant.dim() != 1 or not _is_from_zero(positions):
        return None
    graph = program.graph
    flat = graph.call_function(_aten.flatten.using_ints, (positions,))
    read = graph.call_function(_aten.index_select.default, (biases, 0, flat))
    return graph.call_function(_aten.view_as.default, (read, positions))


def _is_from_zero(node: object) -> bool:
    if not isinstance(node, Node) or node.target not in CLAMPS[:2] or node.kwargs:
        return False
    least = node.args[1]
    return isinstance(least, int) and least >= 0


def _drops_last(node: Node, last: tuple[int, int]) -> bool:
    """True if a sum is over the last axis alone, and drops it."""
    axes, *keeps = node.args[1:]
    return axes in ([last[0]], [last[1]]) and keeps in ([], [False])
