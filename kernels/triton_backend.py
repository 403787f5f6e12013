"""Fused lookups on a CUDA device by Triton kernels of our own: any format, any dim, one launch.

Triton is imported when there are tables to look up on a device, not before: most machines have no
device, and it is an optional dependency.
"""

import importlib
import importlib.util
import os
from typing import Any, ClassVar

import torch
from torch import Tensor

from kernels.bags import Bags
from kernels.bounds import locate
from kernels.device_tables import in_place
from kernels.errors import InputError
from kernels.fused_tables import FusedTables
from kernels.wording import counted


class TritonBackend:
    """One launch over all features of some tables."""

    name: ClassVar[str] = "triton"

    def __init__(self, tables: FusedTables) -> None:
        """Prepares the kernel's constants.

        Args:
            tables: on a CUDA device; under Triton's interpreter, on the host.

        Raises:
            InputError: the tables are elsewhere, or Triton is not installed.
        """
        reason = self.refusal(tables)
        if reason is not None:
            raise InputError(reason)
        self._tables = tables
        self._module: Any = importlib.import_module("kernels.triton_lookup")
        self._lookup = self._module.TritonLookup(in_place(tables))

    @staticmethod
    def refusal(tables: FusedTables) -> str | None:
        """Why this backend cannot look up these tables, or None when it can."""
        device = tables.memory.device
        interpreted = os.environ.get("TRITON_INTERPRET") == "1"
        if device.type != ("cpu" if interpreted else "cuda"):
            return f"triton reads the memory of a CUDA device, the tables are on {device}"
        if importlib.util.find_spec("triton") is None:
            return "triton is not installed (extra: cuda)"
        return None

    def __call__(
        self, bags: Bags, *, ids_checked: bool = False, out: Tensor | None = None
    ) -> Tensor:
        """Pools every bag.

        Args:
            bags: ids of F features and B samples, on the tables' device.
            ids_checked: the caller has made sure that every id lies inside its table; otherwise
                the device is waited for.
            out: fp32 or bf16 `[B, total_dim]` to write to, its lines contiguous; None makes fp32.

        Returns:
            `out`.

        Raises:
            InputError: an id is outside its table, the lengths are not those of the values, or an
                array is of another dtype, shape or device.
        """
        if not ids_checked:
            total = bags.values.numel()
            fitting = ((bags.lengths >= 0) & (bags.lengths <= total)).all()
            if not bool(fitting) or int(bags.lengths.sum()) != total:
                raise InputError(
                    f"lengths: expected non-negative ones that sum to {counted(total, 'value')}, "
                    f"got a sum of {int(bags.lengths.sum())}"
                )
        if out is None:
            shape = (bags.lengths.shape[1], self._tables.total_dim)
            out = torch.empty(shape, device=self._lookup.device)
        outside = self._module.new_outside(self._lookup.device)
        self._lookup.pooled(
            bags.values, bags.offsets(), out=out, outside=outside, weights=bags.weights
        )
        if not ids_checked:
            self._refuse_strange(bags, outside)
        return out

    def _refuse_strange(self, bags: Bags, outside: Tensor) -> None:
        count, position = (int(number) for number in outside.tolist())
        if count:
            feature, sample = locate(bags, position)
            raise InputError(
                f"feature {feature}, sample {sample}: id {int(bags.values[position])} "
                f"is outside [0, {self._tables.rows[feature]})"
            )
