"""Rewriting of a program's graph: operators that passes treat alike, and rules by operator."""

from collections.abc import Callable, Container, Mapping
from typing import Any, Final, TypeVar

import torch
from torch.fx import Graph, GraphModule, Node

from sharded_infer.towers.lowering.constants import give_up_unused

_aten = torch.ops.aten

# The same numbers in another shape.
RESHAPES: Final = (
    *(_aten.reshape.default, _aten.view.default, _aten._unsafe_view.default),
    *(_aten.flatten.using_ints, _aten.unflatten.int),
)
# The same numbers in the same shape.
COPIES: Final = (_aten.clone.default, _aten.contiguous.default, _aten.alias.default)
# Several tensors of one.
DIVISIONS: Final = (
    *(_aten.chunk.default, _aten.split.Tensor, _aten.split.sizes),
    *(_aten.split_with_sizes.default, _aten.unbind.int),
)
ACTIVATIONS: Final = (_aten.relu.default, _aten.sigmoid.default, _aten.silu.default)
CLAMPS: Final = (_aten.clamp.default, _aten.clamp_min.default, _aten.clamp_max.default)
AND: Final = (_aten.logical_and.default, _aten.bitwise_and.Tensor)
OR: Final = (_aten.logical_or.default, _aten.bitwise_or.Tensor)
NOT: Final = (_aten.logical_not.default, _aten.bitwise_not.default)
# By their names in `operator`.
COMPARISONS: Final[Mapping[str, tuple[Any, ...]]] = {
    name: (getattr(_aten, name).Tensor, getattr(_aten, name).Scalar)
    for name in ("ge", "gt", "le", "lt", "eq", "ne")
}
ATTENTION_ARGUMENTS: Final = (
    *("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"),
)


_M = TypeVar("_M", bound=torch.nn.Module)

# Adds the replacement of a node at the graph's insertion point; None: the node stays.
Rule = Callable[[GraphModule, Node], Node | None]


def rewrite(program: GraphModule, rules: Mapping[Any, Rule]) -> int:
    """Replaces calls by the rules of their operators, in place; returns their number."""
    changes = 0
    for node in list(program.graph.nodes):
        rule = rules.get(node.target)
        if rule is None:
            continue
        with program.graph.inserting_before(node):
            replacement = rule(program, node)
        if replacement is not None:
            node.replace_all_uses_with(replacement)
            changes += 1
    if changes:
        remove_unused(program)
    return changes


def remove_unused(program: GraphModule) -> None:
    """Removes calls, modules and tensors that nothing reads, and compiles the program again."""
    # Also dropouts and attentions, which torch takes for drawing random numbers.
    program.graph.eliminate_dead_code(lambda node: node.is_impure(impure_random=False))
    program.delete_all_unused_submodules()
    give_up_unused(program)
    program.recompile()


def move_behind(graph: Graph, view: Node, elementwise: Container[object]) -> int:
    """Moves a view behind the elementwise operators that read it; returns their number."""
    moved = 0
    for user in list(view.users):
        if user.target in elementwise:
            with graph.inserting_before(user):
                made = graph.create_node(
                    "call_function", user.target, (view.args[0], *user.args[1:]), user.kwargs
                )
                behind = graph.create_node("call_function", view.target, (made, *view.args[1:]))
            user.replace_all_uses_with(behind)
            moved += 1 + move_behind(graph, behind, elementwise)
    return moved


def module_of(program: GraphModule, node: object, kind: type[_M]) -> _M | None:
    """The module that a node calls, if it is of a kind."""
    if not isinstance(node, Node) or node.op != "call_module":
        return None
    module = program.get_submodule(str(node.target))
    return module if isinstance(module, kind) else None


def only_user(node: Node) -> Node | None:
    """The node that alone reads another one."""
    return next(iter(node.users)) if len(node.users) == 1 else None
