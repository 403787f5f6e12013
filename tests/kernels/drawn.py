"""Random numbers, and every instruction set of this machine."""

import pytest
import torch
from torch import Tensor

from kernels.machine import InstructionSet, instruction_sets

every_set = pytest.mark.parametrize("instruction_set", instruction_sets())
# Those with fused products and sums have the same bits.
FUSED = tuple(one for one in instruction_sets() if one is not InstructionSet.BASELINE)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
