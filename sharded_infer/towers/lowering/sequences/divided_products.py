"""Division of products of which some columns are read in one row, and others in all rows.

    gates, keys = silu(linear(x, W)).chunk(2, 2)        keys  = silu(linear(x, W[n:]))
    gates[:, -1:], keys                             ->  gates = silu(linear(x[:, -1:], W[:n]))

Example: the last layer of a ranker's transformer, with keys and values of all positions and one
query.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from kernels.product import product_dtypes
from sharded_infer.towers.lowering.constants import add_constant
from sharded_infer.towers.lowering.packing import Linear, linear_of, pack_products
from sharded_infer.towers.lowering.rewriting import ACTIVATIONS, only_user, remove_unused
from sharded_infer.towers.lowering.sequences.row_operators import RowOperators
from sharded_infer.towers.lowering.tensor_kinds import kinds_of

_aten = torch.ops.aten


class _Part(NamedTuple):
    """Columns that a node reads of a product: of all rows, or of those that `selection` chose."""

    node: Node
    first: int
    width: int
    selection: Node | None = None


class _Divided(NamedTuple):
    """A product whose columns are divided; `between`: its elementwise operators."""

    product: Node
    linear: Linear
    between: Sequence[Node]
    parts: Sequence[_Part]


def divide_products(program: GraphModule, inputs: Iterable[Sequence[Tensor]]) -> int:
    """Divides such products, in place; returns their number.

    `program` runs for one request, in the canonical layout, with its rows selected; `inputs` have
    several lengths.
    """
    rows = RowOperators(program, [kinds_of(program, one) for one in inputs])
    graph, made = program.graph, 0
    for node in list(graph.nodes):
        divided = _divided(program, node, rows)
        if divided is None:
            continue
        every = [part for part in divided.parts if part.selection is None]
        selected = [part for part in divided.parts if part.selection is not None]
        # Equal except for their source.
        chosen = {(one.selection.target, *one.selection.args[1:]) for one in selected}  # type: ignore[union-attr]
        if not every or len(chosen) != 1:
            continue
        made += 1
        source: Any = divided.product.args[0]
        with graph.inserting_before(node):
            _put(program, divided, every, source)
        selections = {part.selection for part in selected}
        first = next(one for one in graph.nodes if one in selections)
        with graph.inserting_before(first):
            row = graph.call_function(first.target, (source, *first.args[1:]))
            _put(program, divided, selected, row)
    if made:
        # First, so that no new weight takes the name of one that is removed.
        pack_products(program, product_dtypes())
        remove_unused(program)
    return made


def _divided(program: GraphModule, product: Node, rows: RowOperators) -> _Divided | None:
    linear, shape = linear_of(program, product), rows.shape(product)
    if linear is None or shape is None or len(shape) != 3 or shape[0] != 1:
        return None
    between: list[Node] = []
    last, width = product, len(linear.weight)
    while (user := only_user(last)) is not None and user.target in ACTIVATIONS:
        between.append(user)
        last = user
    parts: list[_Part] = []
    for user in last.users:
        part = _taken(rows, user)
        if _is_selection(user):
            taken = (_taken(rows, one) or _Part(user, 0, width) for one in user.users)
            parts += [one._replace(selection=user) for one in taken]
        elif part is None:
            return None
        elif user.users and all(map(_is_selection, user.users)):
            parts += [part._replace(node=one, selection=one) for one in user.users]
        else:
            parts.append(part)
    return _Divided(product, linear, between, list(dict.fromkeys(parts)))


def _is_selection(node: Node) -> bool:
    last = node.target is _aten.slice.Tensor and node.args[1:3] == (1, -1)
    return bool(last) or bool(node.target is _aten.index_select.default and node.args[1] == 1)


def _taken(rows: RowOperators, node: Node) -> _Part | None:
    """Columns that a node takes of its input's."""
    chosen = rows.chosen.get(node)
    if chosen is None or chosen.node is not node.all_input_nodes[0]:
        return None
    return _Part(node, chosen.first, chosen.width)


def _put(program: GraphModule, divided: _Divided, parts: Sequence[_Part], source: Node) -> None:
    graph = program.graph
    bounds = list(dict.fromkeys((part.first, part.width) for part in parts))
    arguments = [source]
    for tensor in (divided.linear.weight, divided.linear.bias):
        if tensor is not None:
            rows = [tensor[first : first + width] for first, width in bounds]
            arguments.append(add_constant(program, "_divided", torch.cat(rows)))
    made = graph.call_function(_aten.linear.default, tuple(arguments))
    if divided.linear.relu:
        made = graph.call_function(_aten.relu.default, (made,))
    for one in divided.between:
        made = graph.call_function(one.target, (made,))  # type: ignore[arg-type]
    begin = 0
    for first, width in bounds:
        cut = graph.call_function(_aten.slice.Tensor, (made, 2, begin, begin + width))
        begin += width
        for part in parts:
            if (part.first, part.width) == (first, width):
                part.node.replace_all_uses_with(cut)
