"""Chooses the scales of an int8 product from its inputs on samples.

Each product's search minimises the squared error on held-out samples, since a range never looks too
narrow on the samples that it was taken from:

    the columns' scales   s_k = max|x_k|^a / max|w_k|^(1 - a) for a few a (Xiao et al. 2023,
                          "SmoothQuant", equation 4)
    the range of levels   a multiple of the samples' range of x / s; values beyond are clipped
"""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from sharded_infer.errors import InputError
from sharded_infer.towers.program.int8_linear import int8_linear

_MIGRATIONS: Final = (0.0, 0.25, 0.5, 0.75, 1.0)
_RANGES: Final = (1.25, 1.0, 0.9, 0.8, 0.7, 0.6, 0.5)
_WEIGHT_LEVELS: Final = 127
_LEVELS: Final = 255


@dataclass(frozen=True, slots=True, eq=False)
class Int8Weight:
    """A product's integers, as arguments of `int8_linear`, with its shapes and dtypes."""

    weight: Tensor
    weight_scale: Tensor
    inverse_scale: Tensor
    zero_point: int

    def apply(self, x: Tensor) -> Tensor:
        """The product without its bias: fp32 `[..., K]` to fp32 `[..., N]`."""
        made: Tensor = int8_linear(
            x, self.weight, self.weight_scale, None, self.inverse_scale, self.zero_point
        )
        return made


def calibrate_product(weight: Tensor, samples: Tensor) -> Int8Weight:
    """The quantization of fp32 `[N, K]` with the least squared error on fp32 `[S, K]` inputs.

    Raises:
        InputError: the weight or a sample is not finite.
    """
    if not (torch.isfinite(weight).all() and torch.isfinite(samples).all()):
        raise InputError("int8: expected finite weights and samples")
    kept, held_out = (samples[0::2], samples[1::2]) if len(samples) > 1 else (samples, samples)
    expected = torch.nn.functional.linear(held_out, weight)

    def tried(migration: float, width: float) -> tuple[float, Int8Weight]:
        made = _quantized(weight, kept, migration, width)
        return float((made.apply(held_out) - expected).square_().mean()), made

    migration = min(_MIGRATIONS, key=lambda one: tried(one, 1.0)[0])
    # The measured candidate is returned: another range, of all samples, could be a bad one.
    return min((tried(migration, width) for width in _RANGES), key=lambda one: one[0])[1]


def _column_scales(weight: Tensor, samples: Tensor, migration: float) -> Tensor:
    numbers, weights = samples.abs().amax(0), weight.abs().amax(0)
    scale = numbers.pow(migration) / weights.clamp(min=1e-20).pow(1 - migration)
    # Of a column that is always 0, or that no weight reads, any scale will do.
    return torch.where((numbers > 0) & (weights > 0), scale, 1.0).clamp(1e-10, 1e10)


def _quantized(weight: Tensor, samples: Tensor, migration: float, width: float) -> Int8Weight:
    scale = _column_scales(weight, samples, migration)
    evened = samples / scale
    # 0 is always a level: a ReLU makes many of them.
    low = width * min(0.0, float(evened.min()))
    high = width * max(0.0, float(evened.max()))
    step = (high - low) / _LEVELS or 1.0
    scaled = weight * (scale * step)
    weight_scale = scaled.abs().amax(1) / _WEIGHT_LEVELS
    weight_scale = torch.where(weight_scale > 0, weight_scale, 1.0)
    levels = (scaled / weight_scale[:, None]).round_().clamp_(-_WEIGHT_LEVELS, _WEIGHT_LEVELS)
    return Int8Weight(levels.to(torch.int8), weight_scale, 1.0 / (scale * step), round(-low / step))
