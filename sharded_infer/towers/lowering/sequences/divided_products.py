"""Products of which one row of some columns is read, and all rows of others, in two.

    gates, keys = silu(linear(x, W)).chunk(2, 2)        keys  = silu(linear(x, W[n:]))
    gates[:, -1:], keys                             ->  gates = silu(linear(x[:, -1:], W[:n]))

So is the last layer of a ranker's transformer: its keys and values are of all positions, its query
of the one that is read.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from kernels.product import product_dtypes
from sharded_infer.towers.lowering.packing import Linear, linear_of, pack_products
from sharded_infer.towers.lowering.tensor_kinds import Kind, kinds_of

__all__ = ["divide_products"]

_aten = torch.ops.aten
_DIVIDING: Final = (
    *(_aten.chunk.default, _aten.split.Tensor, _aten.split.sizes),
    _aten.split_with_sizes.default,
)
_BY_NUMBER: Final = (_aten.silu.default, _aten.relu.default, _aten.sigmoid.default)


class _Divided(NamedTuple):
    """A product whose columns are divided.

    Attributes:
        between: what is computed of each number, from the product on.
        parts: the first column and the number of them, by the node that takes them.
    """

    product: Node
    linear: Linear
    between: Sequence[Node]
    parts: Mapping[Node, tuple[int, int]]


def divide_products(program: GraphModule, inputs: Iterable[Sequence[Tensor]]) -> int:
    """Divides such products, in place.

    Args:
        program: runs for one request, with its products packed and its rows selected; its inputs
            and outputs do not change.
        inputs: inputs of several lengths, to read dtypes and shapes from runs.

    Returns:
        The number of products that were divided.
    """
    kinds = [kinds_of(program, one) for one in inputs]
    made = 0
    for node in list(program.graph.nodes):
        divided = _divided(program, node, kinds)
        if divided is None:
            continue
        selections = {part: list(part.users) for part in divided.parts if _is_selected(part)}
        selecting = {one for of in selections.values() for one in of}
        # But for the part that they select from.
        chosen = {(one.target, *one.args[1:]) for one in selecting}
        rest = [part for part in divided.parts if part not in selections]
        if len(chosen) != 1 or not rest:
            continue
        made += 1
        source: Any = divided.product.args[0]
        with program.graph.inserting_before(node):
            every = _columns(program, f"_all_{made}", divided, rest, source)
        for part, columns in every.items():
            part.replace_all_uses_with(columns)
        first = next(one for one in program.graph.nodes if one in selecting)
        with program.graph.inserting_before(first):
            row = program.graph.call_function(first.target, (source, *first.args[1:]))
            one_row = _columns(program, f"_one_{made}", divided, list(selections), row)
        for part, columns in one_row.items():
            for selection in selections[part]:
                selection.replace_all_uses_with(columns)
    if made:
        program.graph.eliminate_dead_code(lambda node: node.is_impure(impure_random=False))
        pack_products(program, product_dtypes())
        program.delete_all_unused_submodules()
        program.recompile()
    return made


def _divided(
    program: GraphModule, node: Node, kinds: Sequence[Mapping[Node, Kind]]
) -> _Divided | None:
    if node.target not in _DIVIDING or node.kwargs or not isinstance(node.args[0], Node):
        return None
    shapes = [of[one][1] for of in kinds if (one := node.args[0]) in of]
    if any(len(shape) != 3 or shape[0] != 1 for shape in shapes) or len(shapes) != len(kinds):
        return None
    if (*node.args, 0)[2] not in (-1, 2):
        return None
    between: list[Node] = []
    product = node.args[0]
    while product.target in _BY_NUMBER and len(product.users) == 1:
        between.insert(0, product)
        product = product.args[0]  # type: ignore[assignment]
    linear = linear_of(program, product)
    if linear is None or len(product.users) != 1:
        return None
    target: Any = node.target
    columns = target(torch.arange(len(linear.weight)).view(1, 1, -1), *node.args[1:])
    taken = {user: columns[user.args[1]].flatten() for user in node.users}
    parts = {user: (int(one[0]), len(one)) for user, one in taken.items()}
    return _Divided(product, linear, between, parts)


def _is_selected(part: Node) -> bool:
    """Whether all that is read of a part is one row."""
    return bool(part.users) and all(
        (user.target is _aten.slice.Tensor and user.args[1:3] == (1, -1))
        or (user.target is _aten.index_select.default and user.args[1] == 1)
        for user in part.users
    )


def _columns(
    program: GraphModule, name: str, divided: _Divided, parts: Sequence[Node], source: Node
) -> dict[Node, Node]:
    """A product of some columns, of which each part has its own."""
    graph, bounds = program.graph, [divided.parts[part] for part in parts]
    held = {"weight": divided.linear.weight, "bias": divided.linear.bias}
    arguments = [source]
    for kind, tensor in held.items():
        if tensor is not None:
            rows = [tensor[first : first + count] for first, count in bounds]
            program.register_buffer(f"{name}_{kind}", torch.cat(rows), persistent=False)
            arguments.append(graph.get_attr(f"{name}_{kind}"))
    made = graph.call_function(_aten.linear.default, tuple(arguments))
    if divided.linear.relu:
        made = graph.call_function(_aten.relu.default, (made,))
    for one in divided.between:
        made = graph.call_function(one.target, (made,))  # type: ignore[arg-type]
    found, begin = {}, 0
    for part, (_, count) in zip(parts, bounds, strict=True):
        cut = made, 2, begin, begin + count
        found[part] = graph.call_function(_aten.slice.Tensor, cut)
        begin += count
    return found
