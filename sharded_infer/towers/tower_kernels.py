"""Fixed costs of a tower's products: memory of kernels, and the start of a run."""

from collections.abc import Iterable, Mapping
from typing import Final

import torch
from torch.fx import GraphModule, Node

from sharded_infer.towers.lowering.constants import constant_of

_aten = torch.ops.aten
# Measured with oneDNN 3.12 (torch 2.13): memory of a product at one batch size, whatever its shape.
# Nine tenths are two copies of a descriptor of 258,376 bytes; int8 products keep one.
_KERNEL_BYTES: Final[Mapping[object, int]] = {
    torch.ops.mkldnn._linear_pointwise.default: 530_000,
    torch.ops.onednn.qlinear_pointwise.default: 320_000,
    _aten.linear.default: 320_000,
    _aten.addmm.default: 320_000,
    _aten.mm.default: 320_000,
    _aten.matmul.default: 320_000,
    _aten.bmm.default: 320_000,
}
# Per run: a processor reads weights ten times as slowly as it multiplies one sample by them, in
# bf16, so that 20 samples more take as long; and each operator takes 10 us, the time of 1e6
# multiplications.
_WEIGHTS_SAMPLES: Final = 20.0
_PRODUCTS_OF_AN_OPERATOR: Final = 1e6


def kernel_bytes(program: GraphModule) -> int:
    """Bytes that oneDNN keeps for a packed program and a batch size of any value.

    Products of equal shapes and dtypes share theirs.
    """
    return sum(_kernels(program).values())


def added_kernel_bytes(programs: Iterable[GraphModule], whole: GraphModule) -> int:
    """Bytes per batch size that `programs` need beyond those of `whole`."""
    kinds: dict[tuple[object, ...], int] = {}
    for program in programs:
        kinds |= _kernels(program)
    known = _kernels(whole)
    return sum(held for kind, held in kinds.items() if kind not in known)


def _kernels(program: GraphModule) -> dict[tuple[object, ...], int]:
    products = [node for node in program.graph.nodes if node.target in _KERNEL_BYTES]
    return {_kind(program, node): _KERNEL_BYTES[node.target] for node in products}


def run_samples(program: GraphModule) -> float:
    """Number of samples that take as long as the fixed part of a packed program's run."""
    weights = sum(one.numel() for one in (*program.parameters(), *program.buffers()))
    operators = len([node for node in program.graph.nodes if node.op.startswith("call")])
    return _WEIGHTS_SAMPLES + _PRODUCTS_OF_AN_OPERATOR * operators / max(1, weights)


def _kind(program: GraphModule, node: Node) -> tuple[object, ...]:
    constants = [constant_of(program, argument) for argument in node.args]
    shapes = [(str(c.dtype), tuple(c.shape)) for c in constants if c is not None]
    settings = [str(a) for a in node.args if not isinstance(a, Node)]
    # Without a constant weight the shape is unknown: the kernel is one of its own.
    return node.target, *shapes, *(settings if shapes else [node.name])
