"""Compares a program with the module that it was exported from."""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from sharded_infer.errors import TowerError
from sharded_infer.towers.program.tower_inputs import TowerInputs

__all__ = ["check_close", "module_samples"]

# Sizes that find a specialised batch size or length: one, two and an odd one.
_BATCHES: Final = (1, 2, 7)
_LENGTHS: Final = (1, 2, 5)
# The program runs the module's own kernels; only fusions inside torch may round differently.
_RELATIVE_TOLERANCE: Final = 1e-4
_ABSOLUTE_TOLERANCE: Final = 1e-5


def module_samples(inputs: TowerInputs) -> list[list[Tensor]]:
    """Random inputs of several batch sizes and lengths, the longest among them."""
    sizes = [*zip(_BATCHES, map(inputs.lengths, _LENGTHS), strict=True)]
    if inputs.sequences:
        sizes.append((_BATCHES[1], inputs.longest))
    return [inputs.samples(batch, lengths) for batch, lengths in sizes]


def check_close(
    results: Sequence[Tensor],
    expected: Sequence[Tensor],
    outputs: Sequence[str],
    *,
    empty: Tensor,
) -> None:
    """Raises TowerError when the program's outputs are not those of the module.

    Args:
        empty: bool `[B]`, the samples with a sequence of no positions. torch's attention gives
            NaN or zeros for them, by the kernel: where the module gives NaN, nothing is compared.
    """
    for name, result, wanted in zip(outputs, results, expected, strict=True):
        if result.shape == wanted.shape:
            undefined = empty.view(-1, *[1] * (wanted.dim() - 1)) & wanted.isnan()
            result = torch.where(undefined, wanted, result)
        if result.shape != wanted.shape or not torch.allclose(
            result, wanted, rtol=_RELATIVE_TOLERANCE, atol=_ABSOLUTE_TOLERANCE, equal_nan=True
        ):
            raise TowerError(
                f"output {name!r} of the program differs from the module's on a batch of "
                f"{wanted.shape[0]}: is the module random, or does it depend on the batch?"
            )
