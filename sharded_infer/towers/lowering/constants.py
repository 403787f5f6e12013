"""Constant tensors and modules of a program's graph."""

from itertools import count
from typing import Any

import torch
from torch.fx import GraphModule, Node


def constant_of(program: GraphModule, node: object) -> torch.Tensor | None:
    """The tensor that a node reads from the program; None for other nodes."""
    if not isinstance(node, Node) or node.op != "get_attr":
        return None
    owner, _, name = str(node.target).rpartition(".")
    found = getattr(program.get_submodule(owner), name)
    return found if isinstance(found, torch.Tensor) else None


def add_constant(
    program: GraphModule, stem: str, tensor: torch.Tensor, *, persistent: bool = False
) -> Node:
    """Registers a buffer as `stem` and a number, and reads it at the graph's insertion point.

    With `persistent`, it is exported as a weight.
    """
    name = _unused_name(program, stem)
    program.register_buffer(name, tensor, persistent=persistent)
    return program.graph.get_attr(name)


def add_call(
    program: GraphModule, stem: str, module: torch.nn.Module, args: tuple[Any, ...]
) -> Node:
    """Registers a module under an unused name and calls it at the graph's insertion point."""
    name = _unused_name(program, stem)
    program.add_submodule(name, module)
    return program.graph.call_module(name, args)


def _unused_name(program: GraphModule, stem: str) -> str:
    return next(name for n in count() if not hasattr(program, name := f"{stem}_{n}"))


def give_up_unused(program: GraphModule) -> None:
    """Removes tensors that no node reads, but not those of modules that nodes call."""
    used = {str(node.target) for node in program.graph.find_nodes(op="get_attr")}
    called = {str(node.target) for node in program.graph.nodes if node.op == "call_module"}
    for name, _ in [*program.named_parameters(), *program.named_buffers()]:
        owner, _, last = name.rpartition(".")
        if name not in used and owner not in called:
            delattr(program.get_submodule(owner), last)
