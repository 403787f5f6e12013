"""The matrix product of int8 towers, as a torch operator that stored programs can call.

    q = clamp(round(x * inverse_scale + zero_point), 0, 255)     uint8, one scale for each column
    y = ((q - zero_point) @ weight.T) * weight_scale + bias      int8 weight, one scale for each row
    y = NaN                                                      in rows where x has NaN or infinity

Static quantization as in Jacob et al. 2018 ("Quantization and Training of Neural Networks for
Efficient Integer-Arithmetic-Only Inference", equation 3). A sample's result does not depend on
other samples of its batch. The columns' scales are folded into the weight, as in Xiao et al. 2023
("SmoothQuant", equation 3).
"""

from typing import Final

import torch
from torch import Tensor

from kernels.dense_step import ByteLevels, poison_of, to_bytes

# The operator's name in torch.export's files.
INT8_LINEAR_TARGET: Final = "torch.ops.sharded_infer.int8_linear.default"


def int8_linear(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
    inverse_scale: Tensor,
    zero_point: int,
) -> Tensor:
    """The product as fp32 `[..., N]`: integers are exact and sums round as in fp32.

    Args:
        x: fp32 `[..., K]`.
        weight: int8 `[N, K]`.
        weight_scale: fp32 `[N]`.
        bias: fp32 `[N]`.
        inverse_scale: fp32 `[K]`.
        zero_point: from 0 to 255.
    """
    levels = to_bytes(x, ByteLevels(inverse_scale, zero_point)).to(torch.float32) - zero_point
    product = torch.nn.functional.linear(levels, weight.to(torch.float32)) * weight_scale
    product = product + poison_of(x)
    return product if bias is None else product + bias


def _shape_of_int8_linear(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
    inverse_scale: Tensor,
    zero_point: int,
) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]), dtype=torch.float32)


# Not `torch.library.custom_op`: its first call imports torch's compiler, with Triton and SymPy.
# That takes 2 s and 40 MB in a server that compiles nothing.
_library: Final = torch.library.Library("sharded_infer", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define(  # type: ignore[no-untyped-call]
    "int8_linear(Tensor x, Tensor weight, Tensor weight_scale, Tensor? bias, "
    "Tensor inverse_scale, int zero_point) -> Tensor"
)
_library.impl("int8_linear", int8_linear, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
torch.library.register_fake("sharded_infer::int8_linear", _shape_of_int8_linear, lib=_library)

INT8_LINEAR: Final = torch.ops.sharded_infer.int8_linear.default
