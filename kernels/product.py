"""A matrix product with a constant weight, and the steps behind it, in one compiled call.

    y = x @ weight.T                      fp32; bf16, summed in fp32; or bytes, summed in int32
    y = (y - offset) * scale              of bytes: offset is the zero point times the weight's sums
    y = max(y + bias, 0) + poison         where they are given
    x, low, poison = dense_step(y), or dense_step(values, first, y), a cross

See `native/abi/product.h`. fp32 needs AVX2 or AVX-512, bf16 AVX-512 with BF16, and bytes AVX2
or VNNI. Faster instructions (a matrix unit, AMX) are left to oneDNN. Nothing is kept per number of
rows. bf16 differs from oneDNN by the order of its sums, bytes by the rounding of their scaling.
"""

from typing import Final

import torch
from torch import Tensor

from kernels.abi import product
from kernels.abi.product import Factors
from kernels.dense_step import (
    ByteLevels,
    DenseStep,
    Stepped,
    dense_step_fields,
    tensor_address,
)
from kernels.errors import InputError
from kernels.machine import Feature, InstructionSet, Machine, machine

_LANES: Final = 16  # columns that rows are padded to
_PANEL: Final = {InstructionSet.AVX2: 16, InstructionSet.AVX512: 64}  # columns


_FACTORS: Final = {
    torch.float32: Factors.FP32,
    torch.bfloat16: Factors.BF16,
    torch.int8: Factors.BYTES,
}


def product_dtypes(here: Machine | None = None) -> frozenset[torch.dtype]:
    """Dtypes of weights whose products are compiled for a machine; None: this one."""
    here = here or machine()
    return frozenset(dtype for dtype in _FACTORS if product_set(dtype, here) is not None)


def product_set(dtype: torch.dtype, here: Machine) -> InstructionSet | None:
    """The variant that multiplies by weights; None where there is none, or oneDNN is faster."""
    factors, has = _FACTORS.get(dtype), here.ours.__contains__
    if factors is None:
        return None
    if factors is Factors.FP32:
        best = here.instruction_sets[-1]
        return None if best is InstructionSet.BASELINE else best
    if factors is Factors.BF16:
        ours = has(Feature.AVX512 | Feature.BF16) and Feature.AMX_BF16 not in here.onednn
        return InstructionSet.AVX512 if ours else None
    if Feature.AMX_INT8 in here.onednn:
        return None
    if has(Feature.AVX512 | Feature.AVX512_VNNI):
        return InstructionSet.AVX512
    ours = has(Feature.AVX2) and Feature.AVX_VNNI not in here.onednn
    return InstructionSet.AVX2 if ours else None


class PackedWeight:
    """A weight in the compiled product's layout.

    `stored` is `[padded N * padded K]`, in the order of product.h; `shape` is N, K.
    """

    def __init__(self, weight: Tensor) -> None:
        """Packs a weight, fp32, bf16 or int8 `[N, K]`, which is not kept."""
        self.shape = tuple(weight.shape)
        chosen = product_set(weight.dtype, machine())
        if chosen is None:
            raise InputError(f"a product of {weight.dtype}: not compiled for this machine")
        self.instruction_set = chosen
        in_group = self._in_group(weight)
        rows, width = _padded(self.shape[0]), -(-self.shape[1] // in_group) * in_group
        padded = weight.new_zeros(rows, width)
        padded[: self.shape[0], : self.shape[1]] = weight
        panels = torch.split(padded.view(rows, -1, in_group), _PANEL[chosen])
        self.stored = torch.cat([panel.transpose(0, 1).flatten() for panel in panels])

    @property
    def factors(self) -> Factors:
        """Kind of its products."""
        return _FACTORS[self.stored.dtype]

    def unpacked(self) -> Tensor:
        """The weight, `[N, K]`."""
        rows, in_group = _padded(self.shape[0]), self._in_group(self.stored)
        groups, panel = len(self.stored) // rows // in_group, _PANEL[self.instruction_set]
        heights = [min(panel, rows - first) for first in range(0, rows, panel)]
        panels = torch.split(self.stored, [height * groups * in_group for height in heights])
        turned = [
            panel.view(groups, height, in_group).transpose(0, 1).reshape(height, -1)
            for panel, height in zip(panels, heights, strict=True)
        ]
        return torch.cat(turned)[: self.shape[0], : self.shape[1]]

    def _in_group(self, weight: Tensor) -> int:
        if weight.dtype is torch.int8 and self.instruction_set is InstructionSet.AVX2:
            return 2
        return 4 // weight.element_size()


class Product:
    """The product, prepared for its weight and options; thread-safe.

    Args:
        bias: fp32 `[N]`.
        scale: fp32 `[N]`, with an int8 weight.
        zero_point: the byte of 0 in x, with an int8 weight.
        relu: numbers below 0 become 0; NaN stays.
        keep, low: as of `DenseStep`.

    Raises InputError if this machine computes no such product, or no result is requested.
    """

    def __init__(
        self,
        weight: PackedWeight,
        bias: Tensor | None = None,
        *,
        scale: Tensor | None = None,
        zero_point: int = 0,
        relu: bool = False,
        keep: bool = True,
        low: ByteLevels | torch.dtype | None = None,
    ) -> None:
        if (scale is not None) != (weight.factors is Factors.BYTES):
            raise InputError("a product: expected a scale with int8 weights and with no others")
        for name, tensor in (("bias", bias), ("scale", scale)):
            if tensor is not None and tuple(tensor.shape) != weight.shape[:1]:
                shapes = f"{list(weight.shape[:1])}, got {list(tensor.shape)}"
                raise InputError(f"a product: expected a {name} of {shapes}")
        self.weight, self.bias, self.relu = weight, _constant(bias), relu
        self.scale, self.zero_point = _constant(scale), zero_point
        self._offset = None
        if weight.factors is Factors.BYTES:
            self._offset = _lanes(weight.unpacked().sum(1, dtype=torch.int32) * zero_point)
        self._x_dtype = torch.uint8 if weight.factors is Factors.BYTES else weight.stored.dtype
        self._keep, self.low = keep, low
        self.step = DenseStep(keep=keep, low=low)
        self._padded = [None if t is None else _lanes(t) for t in (self.scale, self.bias)]

    def with_step(self, *, keep: bool, low: ByteLevels | torch.dtype | None) -> "Product":
        """The same product with other results."""
        return self._changed(self.weight, self.bias, self.relu, keep, low)

    def with_weight(self, weight: PackedWeight) -> "Product":
        """The product of another weight `[N, any K]`, its result y without the ReLU, in fp32."""
        return self._changed(weight, self.bias, False, True, None)

    def without_bias(self) -> "Product":
        """The same product without its bias."""
        return self._changed(self.weight, None, self.relu, self._keep, self.low)

    def _changed(
        self,
        weight: PackedWeight,
        bias: Tensor | None,
        relu: bool,
        keep: bool,
        low: ByteLevels | torch.dtype | None,
    ) -> "Product":
        scale, zero = self.scale, self.zero_point
        return Product(weight, bias, scale=scale, zero_point=zero, relu=relu, keep=keep, low=low)

    def __call__(
        self,
        x: Tensor,
        poison: Tensor | None = None,
        *,
        values: Tensor | None = None,
        first: Tensor | None = None,
    ) -> Stepped:
        """Runs the product.

        Args:
            x: fp32 or bf16 as the weight, uint8 for an int8 one, `[..., K]`.
            poison: fp32 `[..., 1]`, added to every column.
            values: fp32 `[..., N]`, to which `first * y` is added; None: the result is y.
            first: as `values`, given with them.

        Raises InputError if x has another dtype or width.
        """
        rows, width = self.weight.shape
        if x.dtype is not self._x_dtype or x.shape[-1] != width:
            wanted = f"{self._x_dtype} of width {width}"
            raise InputError(f"a product: expected {wanted}, got {x.dtype} {list(x.shape)}")
        x = x.contiguous()
        shape = (*x.shape[:-1], rows)
        values, first = _like(values, shape), _like(first, shape)
        poison = _like(poison, (*shape[:-1], 1))
        made = self.step.results(shape)
        step = dense_step_fields(shape, made, self.low, values=values, first=first)
        call = product.Product(
            x.data_ptr(),
            self.weight.stored.data_ptr(),
            tensor_address(self._offset),
            *map(tensor_address, self._padded),
            tensor_address(poison),
            width * x.element_size(),
            self.weight.factors,
            self.relu,
            step,
        )
        product.product(self.weight.instruction_set, call)
        return made


def _padded(count: int) -> int:
    return -(-count // _LANES) * _LANES


def _lanes(tensor: Tensor) -> Tensor:
    return torch.nn.functional.pad(tensor, (0, _padded(len(tensor)) - len(tensor)))


def _constant(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach().to(torch.float32).contiguous()


def _like(tensor: Tensor | None, shape: tuple[int, ...]) -> Tensor | None:
    if tensor is not None and (tensor.dtype is not torch.float32 or tuple(tensor.shape) != shape):
        raise InputError(f"a product: expected fp32 {list(shape)}, got {list(tensor.shape)}")
    return None if tensor is None else tensor.contiguous()
