"""Fuses a cross and the cast of its result, between a device tower's matrix products.

x = addcmul(v, f, u); low = to(x, bf16)     ->  cross_step(v, f, u)
"""

import importlib
from collections.abc import Mapping
from operator import getitem
from typing import Any, Final

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from sharded_infer.towers.lowering.tensor_kinds import Kind

__all__ = ["cross_step", "fuse_crosses"]

_aten = torch.ops.aten
_NARROW: Final = (torch.bfloat16, torch.float16)


def cross_step(
    values: Tensor, first: Tensor, factor: Tensor, low: torch.dtype, keep: bool
) -> tuple[Tensor | None, Tensor]:
    """`values + first * factor` in fp32 (None unless `keep`), and rounded to `low`.

    Args:
        values: fp32.
        first: fp32, the shape of `values`.
        factor: fp32, bf16 or fp16, the shape of `values`.
        low: bf16 or fp16.
    """
    given = (values, first, factor)
    if values.is_meta:
        # Like the kernel, without temporaries.
        return torch.empty_like(values) if keep else None, torch.empty_like(values, dtype=low)
    if values.is_cuda and all(one.is_contiguous() for one in given):
        # Imported here because machines without a GPU do not have Triton.
        module: Any = importlib.import_module("kernels.gpu.triton_dense")
        # Triton starts kernels on the current device, not on that of the tensors.
        with torch.cuda.device(values.device):
            made: tuple[Tensor | None, Tensor] = module.cross(*given, low, keep=keep)
        return made
    if keep:
        whole = torch.addcmul(values, first, factor)
        return whole, whole.to(low)
    return None, torch.addcmul(values, first, factor, out=torch.empty_like(values, dtype=low))


def fuse_crosses(program: GraphModule, kinds: dict[Node, Kind]) -> int:
    """Fuses crosses with the casts of their results, in place; returns their number.

    `kinds`, from `kinds_of`, get those of new tensors.
    """
    graph, fused = program.graph, 0
    for node in graph.find_nodes(op="call_function", target=_aten.addcmul.default):
        casts = [user for user in node.users if _narrows(user)]
        if node.kwargs or not casts or not _is_even(node, kinds):
            continue
        low = casts[0].args[1]
        same = [cast for cast in casts if cast.args[1] is low]
        keep = len(same) < len(node.users)
        with graph.inserting_before(node):
            step = graph.call_function(cross_step, (*node.args, low, keep))
            whole = graph.call_function(getitem, (step, 0)) if keep else None
            narrow = graph.call_function(getitem, (step, 1))
        for cast in same:
            cast.replace_all_uses_with(narrow)
            graph.erase_node(cast)
        if whole is not None:
            kinds[whole] = kinds[node]  # later passes look it up
            node.replace_all_uses_with(whole)
        graph.erase_node(node)
        fused += 1
    program.recompile()
    return fused


def _narrows(node: Node) -> bool:
    return node.target is _aten.to.dtype and len(node.args) == 2 and node.args[1] in _NARROW


def _is_even(node: Node, kinds: Mapping[Node, Kind]) -> bool:
    """True if the operands have one shape and dtypes that `cross_step` takes."""
    found = [kinds.get(one) if isinstance(one, Node) else None for one in node.args]
    if len(found) != 3 or any(kind is None for kind in found):
        return False
    (values, first, factor) = [kind for kind in found if kind is not None]
    return (
        values[0] is first[0] is torch.float32
        and factor[0] in (torch.float32, *_NARROW)
        and values[1] == first[1] == factor[1]
    )
