"""A tower's matrix products with their weights packed once, in the layout that oneDNN reads.

    linear(x, W, b)           ->  linear_pointwise(x, packed W, b, "none")

A ReLU behind it stays torch's: oneDNN's turns NaN into 0, a plausible score. It costs up to 3% of a
wide product of 270 samples, and less than can be measured of one sample.

torch's `linear` in bf16 has oneDNN reorder the weight at every call; in fp32 it calls MKL, which
has no AVX-512 on processors that are not Intel's. The packed product is that of torch's compiler
(Inductor) with frozen weights, without a compiler; in bf16 with the same bits as `linear`.
"""

from collections.abc import Set
from typing import Final, NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from kernels.product import PackedWeight, Product
from sharded_infer.towers.lowering.compiled_products import (
    CompiledProduct,
    add_product,
    is_activated,
)
from sharded_infer.towers.lowering.constants import add_constant, constant_of
from sharded_infer.towers.lowering.rewriting import module_of, remove_unused

_aten = torch.ops.aten
# Batch size that layouts are chosen for. All sizes from 1 to 1,024 got the same one.
_BATCH = 256
_PACKED: Final = torch.ops.mkldnn._linear_pointwise.default


class Linear(NamedTuple):
    """A product with a constant weight: fp32 `[N, K]` and `[N]`."""

    weight: Tensor
    bias: Tensor | None
    relu: bool


def pack_products(program: GraphModule, compiled: Set[torch.dtype] = frozenset()) -> int:
    """Packs constant weights of products, in place, and frees the stored weights.

    `compiled` has the dtypes of weights whose products `kernels.product` computes, instead of
    oneDNN.

    Returns:
        The number of packed products: 0 if this build of torch has no oneDNN. Products in bf16 are
            not packed if oneDNN has no bf16 on this processor.
    """
    dtypes = packable_dtypes()
    packed = 0
    # By the stored weight's name: a recurrent layer reads one weight at every step.
    held: dict[str, str] = {}
    weights: dict[str, PackedWeight] = {}
    for node in program.graph.find_nodes(op="call_function", target=_aten.linear.default):
        _, weight, bias = (*node.args, None)[:3]
        stored, added = constant_of(program, weight), constant_of(program, bias)
        if stored is None or stored.dim() != 2 or not _is_vector(bias, added, stored):
            continue
        name = str(getattr(weight, "target", ""))
        if stored.dtype in compiled:
            if name not in weights:
                weights[name] = PackedWeight(stored.detach())
            _compile(program, node, weights[name], added)
        elif stored.dtype in dtypes:
            _pack(program, node, stored, name, held)
        else:
            continue
        packed += 1
    if packed:
        remove_unused(program)
    return packed


def packable_dtypes() -> set[torch.dtype]:
    """Dtypes of products that can be packed on this machine."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return set()
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return {torch.float32, torch.bfloat16}
    return {torch.float32}


def linear_of(program: GraphModule, node: Node) -> Linear | None:
    """The fp32 product that a node computes, packed or compiled; None for other nodes."""
    module = module_of(program, node, CompiledProduct)
    if module is not None:
        product, is_fp32 = module.product, module.weight.dtype is torch.float32
        if len(node.args) != 1 or not is_fp32 or product.low is not None:
            return None
        return Linear(product.weight.unpacked(), product.bias, product.relu)
    if node.target is not _PACKED or node.args[3:] != ("none", [], ""):
        return None
    weight, bias = (constant_of(program, one) for one in node.args[1:3])
    if weight is None or weight.dtype is not torch.float32:
        return None
    return Linear(weight.to_dense(), bias, False)


def _compile(program: GraphModule, node: Node, weight: PackedWeight, bias: Tensor | None) -> None:
    activated, dtype = is_activated(node), weight.stored.dtype
    low = None if dtype is torch.float32 else dtype
    product = Product(weight, bias, relu=activated, keep=low is None, low=low)
    replaced = next(iter(node.users)) if activated else node
    add_product(program, replaced, product, (node.args[0],))


def _is_vector(bias: object, added: Tensor | None, weight: Tensor) -> bool:
    """True for a bias with a number per row of the weight; torch broadcasts others."""
    return bias is None or (added is not None and added.shape == weight.shape[:1])


def _pack(
    program: GraphModule, node: Node, stored: Tensor, name: str, held: dict[str, str]
) -> None:
    with program.graph.inserting_before(node):
        if name in held:
            packed = program.graph.get_attr(held[name])
        else:
            laid_out = torch.ops.mkldnn._reorder_linear_weight(stored.detach(), _BATCH)
            packed = add_constant(program, "_packed", laid_out)
            held[name] = str(packed.target)
        bias = (*node.args, None)[2]
        product = program.graph.call_function(_PACKED, (node.args[0], packed, bias, "none", [], ""))
    node.replace_all_uses_with(product)
