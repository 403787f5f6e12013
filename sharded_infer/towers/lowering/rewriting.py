"""Rewriting of a program's graph: rules by operator, and removal of what they leave unread."""

from collections.abc import Callable, Container, Mapping
from typing import Any, TypeVar

import torch
from torch.fx import Graph, GraphModule, Node

from sharded_infer.towers.lowering.constants import give_up_unused

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
