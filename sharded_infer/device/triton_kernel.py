"""The Triton kernels as an engine's lookups."""

import importlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kernels.device_tables import DeviceTables


class TritonKernel:
    """One launch over tables in a device's memory, or in pinned memory that it reads."""

    def __init__(
        self, tables: DeviceTables, device: torch.device, usual_ids: Sequence[float]
    ) -> None:
        """Prepares the kernel's constants.

        Args:
            tables: whose ids are checked.
            device: where it runs.
            usual_ids: of a bag of each feature; they change speed, never results.
        """
        # It needs Triton, which machines without a card do not have.
        module: Any = importlib.import_module("kernels.triton_lookup")
        self._lookup = module.TritonLookup(tables, typical_lengths=usual_ids, device=device)
        # Nothing is counted there: ids are checked, and other ranks' are skipped silently.
        self._outside: Tensor = module.new_outside(device)

    def pooled(
        self, values: Tensor, offsets: Tensor, *, out: Tensor, weights: Tensor | None = None
    ) -> None:
        """As `Lookup.pooled`."""
        self._lookup.pooled(values, offsets, out=out, outside=self._outside, weights=weights)
