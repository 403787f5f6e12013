"""The work between two matrix products of a tower, in one pass over memory.

    x = values                          or values + first * factor, the cross of a DCNv2
    low = bf16(x)                       or
    low = clamp(round(x * inverse_scale + zero_point), 0, 255)
    poison = 0, or NaN where a number of the row's x is not finite: bytes cannot be NaN

torch needs a pass and a tensor for each operator. The compiled pass (`native/abi/dense.h`) has
torch's bits (of `addcmul`, but for the last one on SSE2); torch computes with operands that it
broadcasts or converts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
from torch import Tensor

from kernels.abi import dense
from kernels.abi.dense import Low
from kernels.errors import InputError
from kernels.machine import InstructionSet, chosen_set

_LEVELS: Final = 255
_FACTORS: Final = (torch.float32, torch.bfloat16)


@dataclass(frozen=True, slots=True, eq=False)
class ByteLevels:
    """Quantization to bytes: `clamp(round(x * inverse_scale + zero_point), 0, 255)`.

    `inverse_scale` is fp32 `[K]`, bytes a unit, of each column; `zero_point` the byte of 0.
    """

    inverse_scale: Tensor
    zero_point: int


class Stepped(NamedTuple):
    """Results of a pass; None if not requested.

    Attributes:
        x: fp32 `[..., K]`.
        low: bf16 or uint8 `[..., K]`.
        poison: with bytes, fp32 `[..., 1]`: 0, or NaN where a row of x has NaN or infinity.
    """

    x: Tensor | None
    low: Tensor | None
    poison: Tensor | None


class DenseStep:
    """The pass, prepared for its options; thread-safe.

    Args:
        keep: return x.
        low: the second result: `torch.bfloat16`, the levels of bytes, or None.
        instruction_set: None takes the fastest; InputError if the machine lacks it.
    """

    def __init__(
        self,
        *,
        keep: bool,
        low: ByteLevels | torch.dtype | None,
        instruction_set: InstructionSet | None = None,
    ) -> None:
        if not keep and low is None:
            raise InputError("a dense step: expected something to be wanted of it")
        if isinstance(low, torch.dtype) and low is not torch.bfloat16:
            raise InputError(f"low: expected bfloat16 or the levels of bytes, got {low}")
        self._keep = keep
        self._levels = low if isinstance(low, ByteLevels) else None
        self._bfloats = low is torch.bfloat16
        self._set = chosen_set(instruction_set, "a dense step")

    def __call__(
        self, values: Tensor, first: Tensor | None = None, factor: Tensor | None = None
    ) -> Stepped:
        """Runs the pass on fp32 `[..., K]` values.

        `first` is as `values`; `factor`, fp32 or bf16 of that shape, is given with it.
        """
        if not _fits(values, first, factor):
            return self.by_torch(values, first, factor)
        made = self.results(values.shape)
        step = dense_step_fields(
            values.shape, made, self._levels, values=values, first=first, factor=factor
        )
        dense.dense_step(self._set, step)
        return made

    def results(self, shape: Sequence[int]) -> Stepped:
        """Memory for the results of one pass with x of `shape`; poison is 0."""
        out = torch.empty(shape) if self._keep else None
        if self._levels is not None:
            low = torch.empty(shape, dtype=torch.uint8)
            return Stepped(out, low, torch.zeros((*shape[:-1], 1)))
        low_bf16 = torch.empty(shape, dtype=torch.bfloat16) if self._bfloats else None
        return Stepped(out, low_bf16, None)

    def by_torch(
        self, values: Tensor, first: Tensor | None = None, factor: Tensor | None = None
    ) -> Stepped:
        """The reference in torch's operators."""
        x = values
        if first is not None and factor is not None:
            x = torch.addcmul(values, first, factor.float())
        kept = x if self._keep else None
        if self._levels is not None:
            return Stepped(kept, to_bytes(x, self._levels), poison_of(x))
        return Stepped(kept, x.to(torch.bfloat16) if self._bfloats else None, None)


def dense_step_fields(
    shape: Sequence[int],
    made: Stepped,
    low: ByteLevels | torch.dtype | None,
    *,
    values: Tensor | None,
    first: Tensor | None,
    factor: Tensor | None = None,
) -> dense.DenseStep:
    """The structure for compiled code; the caller keeps all tensors alive.

    `shape` is that of x; `results` gets what is computed.
    """
    width = shape[-1]
    levels = low if isinstance(low, ByteLevels) else None
    kind = Low.NOTHING if made.low is None else Low.BFLOATS if levels is None else Low.BYTES
    return dense.DenseStep(
        tensor_address(values),
        tensor_address(first),
        tensor_address(factor),
        None if levels is None else levels.inverse_scale.data_ptr(),
        tensor_address(made.x),
        tensor_address(made.low),
        tensor_address(made.poison),
        math.prod(shape[:-1]),
        width,
        0.0 if levels is None else levels.zero_point,
        factor is not None and factor.dtype is torch.bfloat16,
        kind,
    )


def tensor_address(tensor: Tensor | None) -> int | None:
    """Address of a tensor's first element; None for None."""
    return None if tensor is None else tensor.data_ptr()


def to_bytes(values: Tensor, levels: ByteLevels) -> Tensor:
    """Fp32 `[..., K]` numbers as uint8 `[..., K]`; NaN becomes 255."""
    scaled = values * levels.inverse_scale + levels.zero_point
    # Clamped first, like the compiled pass, which rounds only small numbers.
    return scaled.nan_to_num(_LEVELS, _LEVELS, 0).clamp(0, _LEVELS).round().to(torch.uint8)


def poison_of(values: Tensor) -> Tensor:
    """A term, added to fp32 `[..., K]` rows, that turns those with NaN or infinity to NaN.

    Fp32 `[..., 1]`: 0 or NaN.
    """
    return (values * 0).sum(-1, keepdim=True)


def _fits(values: Tensor, first: Tensor | None, factor: Tensor | None) -> bool:
    """True if the compiled pass can read these; torch broadcasts or converts others."""
    if values.dtype is not torch.float32 or not values.is_contiguous():
        return False
    if first is None or factor is None:
        return True
    return (
        first.dtype is torch.float32
        and factor.dtype in _FACTORS
        and first.shape == factor.shape == values.shape
        and first.is_contiguous()
        and factor.is_contiguous()
    )
