"""Compiled products in torch's operators."""

import torch
from torch import Tensor

from kernels.dense_step import Stepped
from kernels.product import Product


def product_by_torch(
    product: Product,
    x: Tensor,
    poison: Tensor | None = None,
    *,
    values: Tensor | None = None,
    first: Tensor | None = None,
) -> Stepped:
    weight = product.weight.unpacked()
    if product.scale is None:
        y = torch.nn.functional.linear(x.float(), weight.float())
    else:
        # Integers of any size that int32 holds are exact in fp64.
        numbers = x.double() - product.zero_point
        y = torch.nn.functional.linear(numbers, weight.double()).float() * product.scale
    y = y if product.bias is None else y + product.bias
    y = torch.relu(y) if product.relu else y
    y = y if poison is None else y + poison
    return product.step.by_torch(y) if values is None else product.step.by_torch(values, first, y)
