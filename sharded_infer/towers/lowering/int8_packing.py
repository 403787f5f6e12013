"""A program's int8 products, with their integers packed as oneDNN reads them.

    int8_linear(x, W, s, b, i, z)  ->  qlinear(bytes(x; i, z), packed W, s, b)

A product that only another one reads, directly or through a ReLU, writes the other's bytes: the
other's column divisors are folded into its scales and bias (a positive scale commutes with a ReLU).
Bytes cannot be NaN: a row that was not finite before the first of them is NaN again after the last.

oneDNN's int8 products are exact where the processor adds products of bytes in 32 bits (VNNI, AMX);
AVX2 adds pairs in 16 bits, which overflow. This machine is tested once. Where neither they nor
compiled ones are exact, the integers are multiplied as fp32.
"""

import math
from dataclasses import dataclass
from functools import cache
from typing import Final

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from kernels.dense_step import ByteLevels
from kernels.product import PackedWeight, Product
from sharded_infer.errors import TowerError
from sharded_infer.towers.lowering.compiled_products import add_product, is_activated
from sharded_infer.towers.lowering.constants import add_call, add_constant, constant_of
from sharded_infer.towers.lowering.fused_steps import Added, Step, add_step
from sharded_infer.towers.lowering.rewriting import only_user, remove_unused
from sharded_infer.towers.program.int8_linear import INT8_LINEAR

_aten = torch.ops.aten
_onednn = torch.ops.onednn
# Batch size that layouts are chosen for.
_BATCH: Final = 256
_LEVELS: Final = 255
_MOST_COLUMNS: Final = (2**31 - 1) // (_LEVELS * 128)


def pack_int8_products(program: GraphModule, *, compiled: bool = False) -> int:
    """Packs int8 products in place, frees the stored integers, and returns their number.

    With `compiled`, `kernels.product` computes them, instead of oneDNN.
    """
    nodes = [node for node in program.graph.nodes if node.target is INT8_LINEAR]
    products = {node: Int8Product.of(program, node) for node in nodes}
    # Each product's bytes, and the NaN mask of their source rows.
    given: dict[Node, Added] = {}
    for node, product in products.items():
        if node not in given:
            step = Step(keep=False, low=product.levels)
            with program.graph.inserting_before(node):
                given[node] = add_step(program, step, (node.args[0],))
        if not compiled and not has_exact_int8():
            _multiply_as_fp32(program, node, product, given[node])
            continue
        activated, follower = _follower(node)
        levels = products[follower].levels if follower is not None else None
        replaced = next(iter(node.users)) if activated else node
        if compiled:
            ours = product.compiled(levels, activated)
            # Bytes cannot be NaN: the poison waits for the last product of the row.
            args = (given[node].low,) if follower is not None else given[node][1:]
            made = add_product(program, replaced, ours, args)
        else:
            made = _packed(program, node, product, given[node].low, levels, activated)
            if follower is None:
                made = _masked(program, replaced, made, given[node].poison)
            replaced.replace_all_uses_with(made)
        if follower is not None:
            given[follower] = given[node]._replace(low=made)
    if products:
        remove_unused(program)
    return len(products)


class NanMask(torch.nn.Module):
    """Adds NaN to the rows that were not finite; nearly free if all were."""

    def forward(self, product: Tensor, poison: Tensor) -> Tensor:
        """The fp32 `[..., N]` product with its fp32 `[..., 1]` poison, 0 or NaN."""
        return product + poison if math.isnan(float(poison.sum())) else product


@cache
def has_exact_int8() -> bool:
    """True if oneDNN multiplies the largest bytes here without an overflow."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    width, rows = 64, 2
    weight = torch.full((16, width), 127, dtype=torch.int8)
    packed = _onednn.qlinear_prepack(weight, [rows, width])
    scale, zeros = torch.ones(16), torch.zeros(16, dtype=torch.int64)
    largest = torch.full((rows, width), 255, dtype=torch.uint8)
    found = _onednn.qlinear_pointwise(
        *(largest, 1.0, 0, packed, scale, zeros, None, 1.0, 0, torch.float32, "none", [], "")
    )
    return bool((found == 255 * 127 * width).all())


@dataclass(frozen=True, slots=True, eq=False)
class Int8Product:
    """Constants of one product; see `program.int8_linear.int8_linear`."""

    weight: Tensor
    weight_scale: Tensor
    bias: Tensor | None
    levels: ByteLevels

    @classmethod
    def of(cls, program: GraphModule, node: Node) -> "Int8Product":
        """Reads them from an untrusted program.

        Raises TowerError if one is no constant, or has another dtype or shape than the operator's.
        """
        weight, weight_scale, bias, inverse_scale = (
            constant_of(program, argument) for argument in node.args[1:5]
        )
        zero_point = node.args[5]
        if weight is None or weight_scale is None or inverse_scale is None:
            raise TowerError(f"{node.target}: expected constant integers and scales")
        if bias is None and node.args[3] is not None:
            raise TowerError(f"{node.target}: expected a constant bias or none")
        rows, width = _checked(weight, torch.int8, None)
        if not 0 < width <= _MOST_COLUMNS:
            raise TowerError(
                f"{node.target}: expected 1 to {_MOST_COLUMNS} columns, whose sums int32 holds, "
                f"got {width}"
            )
        _checked(weight_scale, torch.float32, (rows,))
        _checked(inverse_scale, torch.float32, (width,))
        if bias is not None:
            _checked(bias, torch.float32, (rows,))
        if not isinstance(zero_point, int) or not 0 <= zero_point <= _LEVELS:
            raise TowerError(f"{node.target}: expected a zero point from 0 to 255: {zero_point}")
        return cls(weight, weight_scale, bias, ByteLevels(inverse_scale.contiguous(), zero_point))

    def scaled(self, levels: ByteLevels | None) -> tuple[Tensor, Tensor | None]:
        """Scale and bias, times the next product's column divisors."""
        if levels is None:
            return self.weight_scale, self.bias
        bias = None if self.bias is None else self.bias * levels.inverse_scale
        return self.weight_scale * levels.inverse_scale, bias

    def compiled(self, levels: ByteLevels | None, activated: bool) -> Product:
        """The product; its result is in the bytes of `levels`, if any."""
        scale, bias = self.scaled(levels)
        low = None if levels is None else ByteLevels(torch.ones(len(scale)), levels.zero_point)
        return Product(
            PackedWeight(self.weight),
            bias,
            scale=scale,
            zero_point=self.levels.zero_point,
            relu=activated,
            keep=low is None,
            low=low,
        )


def _checked(tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...] | None) -> tuple[int, ...]:
    """The shape; files are not trusted, and compiled code is about to read the tensor."""
    found = tuple(tensor.shape)
    if tensor.dtype is not dtype or (found != shape if shape is not None else len(found) != 2):
        wanted = "[N, K]" if shape is None else list(shape)
        raise TowerError(
            f"int8_linear: expected {dtype} {wanted}, got {tensor.dtype} {list(found)}"
        )
    return found


def _follower(node: Node) -> tuple[bool, Node | None]:
    """True if only a ReLU reads a product, and the product that alone reads the result."""
    activated = is_activated(node)
    last = next(iter(node.users)) if activated else node
    reader = only_user(last)
    if reader is None or reader.target is not INT8_LINEAR or reader.args[0] is not last:
        return activated, None
    return activated, reader


def _masked(program: GraphModule, before: Node, product: Node, poison: Node) -> Node:
    with program.graph.inserting_before(before):
        return add_call(program, "_nan_mask", NanMask(), (product, poison))


def _packed(
    program: GraphModule,
    node: Node,
    product: Int8Product,
    given: Node,
    levels: ByteLevels | None,
    activated: bool,
) -> Node:
    scale, bias = product.scaled(levels)
    packed = _onednn.qlinear_prepack(product.weight.contiguous(), [_BATCH, product.weight.shape[1]])
    zeros = torch.zeros(len(scale), dtype=torch.int64)
    with program.graph.inserting_before(node):
        weight_at, scale_at, zeros_at, bias_at = (
            None if tensor is None else add_constant(program, "_int8", tensor)
            for tensor in (packed, scale, zeros, bias)
        )
        return program.graph.call_function(
            _onednn.qlinear_pointwise.default,
            (
                *(given, 1.0, product.levels.zero_point, weight_at, scale_at, zeros_at, bias_at),
                *(1.0, 0 if levels is None else levels.zero_point),
                torch.float32 if levels is None else torch.uint8,
                *("relu" if activated else "none", [], ""),
            ),
        )


def _multiply_as_fp32(program: GraphModule, node: Node, product: Int8Product, given: Added) -> None:
    """Integers up to 2^24 are exact in fp32; sums round as in any fp32 product."""
    weight = product.weight.to(torch.float32) * product.weight_scale[:, None]
    graph = program.graph
    with graph.inserting_before(node):
        held = add_constant(program, "_int8_as_fp32", weight)
        numbers = graph.call_function(_aten.to.dtype, (given.low, torch.float32))
        centred = graph.call_function(_aten.sub.Scalar, (numbers, product.levels.zero_point))
        made = graph.call_function(_aten.linear.default, (centred, held, node.args[3]))
    node.replace_all_uses_with(_masked(program, node, made, given.poison))
