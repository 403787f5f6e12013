"""The constant tensors of a program's graph."""

import torch
from torch.fx import GraphModule, Node

__all__ = ["constant_of", "give_up_unused"]


def constant_of(program: GraphModule, node: object) -> torch.Tensor | None:
    """The tensor that a node reads from the program; None for other nodes."""
    if not isinstance(node, Node) or node.op != "get_attr":
        return None
    owner, _, name = str(node.target).rpartition(".")
    found = getattr(program.get_submodule(owner), name)
    return found if isinstance(found, torch.Tensor) else None


def give_up_unused(program: GraphModule) -> None:
    """Removes the tensors that no node reads any more, but not those of modules that nodes call."""
    used = {str(node.target) for node in program.graph.find_nodes(op="get_attr")}
    called = {str(node.target) for node in program.graph.nodes if node.op == "call_module"}
    for name, _ in [*program.named_parameters(), *program.named_buffers()]:
        owner, _, last = name.rpartition(".")
        if name not in used and owner not in called:
            delattr(program.get_submodule(owner), last)
