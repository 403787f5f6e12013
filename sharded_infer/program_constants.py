"""The tensors that a program's graph holds."""

import torch
from torch.fx import GraphModule, Node

__all__ = ["constant_of", "give_up_unused"]


def constant_of(program: GraphModule, node: object) -> torch.Tensor | None:
    """The tensor that a node reads from the program, or None where it is no such node."""
    if not isinstance(node, Node) or node.op != "get_attr":
        return None
    owner, _, name = str(node.target).rpartition(".")
    found = getattr(program.get_submodule(owner), name)
    return found if isinstance(found, torch.Tensor) else None


def give_up_unused(program: GraphModule) -> None:
    """Lets go of the tensors that no node reads any more."""
    used = {str(node.target) for node in program.graph.find_nodes(op="get_attr")}
    for name, _ in [*program.named_parameters(), *program.named_buffers()]:
        if name not in used:
            owner, _, last = name.rpartition(".")
            delattr(program.get_submodule(owner), last)
