"""A program's products by `kernels.product`, where this machine has it.

    linear(x, W, b)                                ->  product(x)
    relu(linear(x, W, b))                          ->  product(x) with a ReLU
    x = v + f * product(y);  low = bytes(x)        ->  x, low = product(y; v, f)

Steps between two products run while a tile of the first one is in the cache. A cross's factor is
then not rounded to bf16 before it.
"""

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from kernels.dense_step import Stepped
from kernels.product import Product
from sharded_infer.towers.lowering.constants import add_call
from sharded_infer.towers.lowering.fused_steps import Step
from sharded_infer.towers.lowering.rewriting import module_of, only_user, remove_unused

_aten = torch.ops.aten


class CompiledProduct(torch.nn.Module):
    """A product with one result: low if it has one, else x."""

    def __init__(self, product: Product) -> None:
        super().__init__()
        # A buffer, so that the program's weights are counted.
        self.register_buffer("weight", product.weight.stored, persistent=False)
        self.product = product

    def forward(self, x: Tensor, poison: Tensor | None = None) -> Tensor:
        """Runs the product; shapes and dtypes as in `Product`."""
        made = self.product(x, poison)
        return made.x if made.low is None else made.low  # type: ignore[return-value]


class CrossedProduct(torch.nn.Module):
    """A product that is the factor of a cross."""

    def __init__(self, product: Product) -> None:
        super().__init__()
        self.register_buffer("weight", product.weight.stored, persistent=False)
        self.product = product

    def forward(self, x: Tensor, poison: Tensor | None, values: Tensor, first: Tensor) -> Stepped:
        """Runs the product and the cross; shapes and dtypes as in `Product`."""
        return self.product(x, poison, values=values, first=first)


def is_activated(product: Node) -> bool:
    """True if only a ReLU reads a product."""
    user = only_user(product)
    return user is not None and user.target is _aten.relu.default


def add_product(
    program: GraphModule, replaced: Node, product: Product, args: tuple[Any, ...]
) -> Node:
    """Replaces a node by a product."""
    with program.graph.inserting_before(replaced):
        made = add_call(program, "_product", CompiledProduct(product), args)
    replaced.replace_all_uses_with(made)
    return made


def join_crosses(program: GraphModule) -> int:
    """Joins each cross to its factor's compiled product, in place; returns their number.

    The program's products are packed and its steps fused.
    """
    joined = 0
    for node in list(program.graph.nodes):
        step = module_of(program, node, Step)
        if step is None or len(node.args) != 3:
            continue
        values, first, factor = node.args
        made = module_of(program, factor, CompiledProduct)
        if made is None or len(factor.users) != 1 or not _is_rounded_at_most(made.product):
            continue
        product = CrossedProduct(made.product.with_step(keep=step.keeps, low=step.low))
        x, poison = (*factor.args, None)[:2]
        with program.graph.inserting_before(node):
            crossed = add_call(program, "_crossed_product", product, (x, poison, values, first))
        node.replace_all_uses_with(crossed)
        joined += 1
    if joined:
        remove_unused(program)
    return joined


def _is_rounded_at_most(product: Product) -> bool:
    return product.low is None or product.low is torch.bfloat16
