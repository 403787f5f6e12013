"""TF32 as CUDA devices compute it, on any device: factors rounded, products summed in fp32.

    a @ b   ->   tf32(a) @ tf32(b)        for every inner product

A TF32 number is an fp32 one with 10 of its 23 fraction bits. Two of them multiply exactly in fp32,
so a device differs only by its order of addition. Rounding is to nearest, ties away from zero:
`cvt.rna.tf32.f32` (PTX ISA, "cvt"), the only conversion of sm_80, as used by CUTLASS. Where a
library passes plain fp32 to tensor cores, those cut the last 13 bits off: up to twice this error of
a factor, always towards zero.
"""

import re
from typing import Final

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import Argument, map_arg

from sharded_infer.errors import InternalError, TowerError
from sharded_infer.towers.lowering.constants import add_constant, constant_of
from sharded_infer.towers.lowering.precision import inner_products
from sharded_infer.towers.lowering.rewriting import remove_unused

_CUT_BITS: Final = 13
_HALF: Final = 1 << (_CUT_BITS - 1)
# Names of factors in operators' schemas; without the addend of a product.
_FACTORS: Final = re.compile("input|weight|mat1|mat2|batch1|batch2|self|other|tensors")
_ADDED: Final = {torch.ops.aten.addmm.default: "self", torch.ops.aten.baddbmm.default: "self"}


def round_to_tf32(values: Tensor) -> Tensor:
    """Numbers as TF32, in fp32; infinities and NaN stay, other dtypes too."""
    if values.dtype is not torch.float32:
        return values
    # Sign and magnitude: half a step more in the bits is half a step away from zero.
    bits = (values.view(torch.int32) + _HALF) >> _CUT_BITS << _CUT_BITS
    return torch.where(values.isfinite(), bits.view(torch.float32), values)


def emulate_tf32(program: GraphModule) -> int:
    """Rounds the factors of an fp32 program's products to TF32, in place; returns their number.

    Raises:
        TowerError: a product's factors are not fp32, so the program is not a tf32 one.
    """
    rounding = _Rounding(program)
    products = inner_products(program.graph)
    for node in products:
        rounding.apply(node)
    remove_unused(program)
    return len(products)


class _Rounding:
    def __init__(self, program: GraphModule) -> None:
        self._program = program
        self._rounded: dict[Node, Node] = {}

    def apply(self, product: Node) -> None:
        if not isinstance(product.target, torch._ops.OpOverload):
            raise InternalError(f"product {product.name} is no operator: {product.target}")
        names = [argument.name for argument in product.target._schema.arguments]
        factors = {name for name in names if _FACTORS.fullmatch(name)}
        factors.discard(_ADDED.get(product.target, ""))

        def replaced(name: str, argument: Argument) -> Argument:
            return map_arg(argument, self._round) if name in factors else argument

        product.args = tuple(map(replaced, names, product.args))
        product.kwargs = {name: replaced(name, value) for name, value in product.kwargs.items()}

    def _round(self, factor: Node) -> Node:
        if factor not in self._rounded:
            self._rounded[factor] = self._made(factor)
        return self._rounded[factor]

    def _made(self, factor: Node) -> Node:
        if factor.target is round_to_tf32:
            return factor
        held = constant_of(self._program, factor)
        graph = self._program.graph
        if held is None:
            with graph.inserting_after(factor):
                return graph.call_function(round_to_tf32, (factor,))
        if held.dtype is not torch.float32:
            raise TowerError(f"a tf32 tower: expected weights in fp32, got one in {held.dtype}")
        rounded = round_to_tf32(held.detach())
        if torch.equal(rounded, held):
            return factor
        with graph.inserting_after(factor):
            return add_constant(self._program, "_tf32", rounded)
