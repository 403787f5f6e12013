"""What a tower's products cost beside their arithmetic: memory of kernels, a run's beginning."""

from collections.abc import Mapping
from typing import Final

import torch
from torch.fx import GraphModule, Node

from sharded_infer.program_constants import constant_of

__all__ = ["kernel_bytes", "run_samples"]

_aten = torch.ops.aten
# Measured with oneDNN 3.12 (torch 2.13): what one product of one batch size holds, whatever its
# shape. Nine tenths are two copies of a descriptor of 258,376 bytes; int8 products keep one.
_KERNEL_BYTES: Final[Mapping[object, int]] = {
    torch.ops.mkldnn._linear_pointwise.default: 530_000,
    torch.ops.onednn.qlinear_pointwise.default: 320_000,
    _aten.linear.default: 320_000,
    _aten.addmm.default: 320_000,
    _aten.mm.default: 320_000,
    _aten.matmul.default: 320_000,
    _aten.bmm.default: 320_000,
}
# Of a run: a processor reads weights ten times as slowly as it multiplies one sample by them, in
# bf16, so that 20 samples more take as long; and each operator takes 10 us, in which 1e6 products
# of a weight and a number are done.
_WEIGHTS_SAMPLES: Final = 20.0
_PRODUCTS_OF_AN_OPERATOR: Final = 1e6


def kernel_bytes(program: GraphModule) -> int:
    """Bytes that oneDNN keeps for a program and one batch size, whatever the size.

    Products of equal shapes and dtypes share theirs.

    Args:
        program: with its products packed.
    """
    products = [node for node in program.graph.nodes if node.target in _KERNEL_BYTES]
    kinds = {_kind(program, node): _KERNEL_BYTES[node.target] for node in products}
    return sum(kinds.values())


def run_samples(program: GraphModule) -> float:
    """How many samples more would take as long as a run by itself.

    Args:
        program: with its products packed.
    """
    weights = sum(tensor.numel() for _, tensor in _tensors(program))
    operators = len([node for node in program.graph.nodes if node.op.startswith("call")])
    return _WEIGHTS_SAMPLES + _PRODUCTS_OF_AN_OPERATOR * operators / max(1, weights)


def _kind(program: GraphModule, node: Node) -> tuple[object, ...]:
    """What a kernel is compiled for, the batch size apart."""
    constants = [constant_of(program, argument) for argument in node.args]
    shapes = [(str(c.dtype), tuple(c.shape)) for c in constants if c is not None]
    settings = [str(a) for a in node.args if not isinstance(a, Node)]
    # Without a constant weight nothing is known of its shape: it is one of its own.
    return node.target, *shapes, *(settings if shapes else [node.name])


def _tensors(program: GraphModule) -> list[tuple[str, torch.Tensor]]:
    return [*program.named_parameters(), *program.named_buffers()]
