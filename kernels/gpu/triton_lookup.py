"""Launches the Triton kernels on the tables of one device and format."""

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kernels.errors import InputError
from kernels.gpu.device_tables import DeviceTables
from kernels.gpu.row_stride import WIDE_BYTES, WORD_BYTES
from kernels.gpu.triton_pooled import pooled_kernel
from kernels.gpu.triton_tiles import (
    TileChoice,
    TilePlan,
    default_choice,
    kernel_format,
    most_registers,
    plan_tiles,
)

_MOST_PROGRAMS = 2**31 - 1


class TritonLookup:
    """The kernels' constants for some tables, and their launches."""

    def __init__(
        self,
        tables: DeviceTables,
        *,
        typical_lengths: Sequence[float] | None = None,
        choice: TileChoice | None = None,
        device: torch.device | None = None,
    ) -> None:
        """Plans tiles and copies the feature table to the device.

        Args:
            tables: on a CUDA device; under Triton's interpreter, on the host.
            typical_lengths: usual ids of a bag of each feature; they affect speed, not results.
            choice: tiles; None takes the default.
            device: device of the lookups, for tables in pinned memory; None: the tables' device.

        Raises:
            InputError: the tables are not at words.
        """
        self.tables = tables
        self.device = tables.memory.device if device is None else device
        row_format = tables.row_format
        alignment = tables.payload_alignment
        self.plan: TilePlan = plan_tiles(
            row_format,
            tables.dims,
            choice or default_choice(alignment),
            typical_lengths=typical_lengths,
        )
        major, minor = (0, 0)
        if self.device.type == "cuda":
            major, minor = torch.cuda.get_device_capability(self.device)
        capability = 10 * major + minor
        self._most_registers = most_registers(row_format, capability)
        whole = tables.memory.numel() // WORD_BYTES * WORD_BYTES
        self._memory = tables.memory[:whole].view(torch.int32)
        lines = _feature_lines(tables)
        self._features = lines[list(self.plan.order)].to(self.device)
        self.constants: dict[str, Any] = {
            "FORMAT": kernel_format(row_format, capability),
            "ELEMENT_BITS": row_format.element_bits,
            "PAYLOAD_ALIGNMENT": alignment,
        }

    def pooled(
        self,
        values: Tensor,
        offsets: Tensor,
        *,
        out: Tensor,
        weights: Tensor | None = None,
    ) -> None:
        """Pools every bag. Does not wait for the work.

        Ids that are not in the tables are skipped in sums; in means they count as rows of zeros.

        Args:
            values: int32 or int64 `[N]` on the device, feature-major.
            offsets: int32 or int64 `[F * B + 1]` on the device, start of each bag; F is larger than
                any of the tables' positions.
            out: fp32 or bf16 `[B, total_dim or wider]` on the device, any stride between lines; the
                tables' columns are written.
            weights: fp32 `[N]`.

        Raises:
            InputError: an array has another dtype, shape or device.
        """
        batch = len(out)
        _check_ids(values, offsets, self.device)
        least = (max(self.tables.positions) + 1) * batch + 1
        if len(offsets) < least:
            raise InputError(f"offsets: expected at least {least}, got {len(offsets)}")
        _check_out(out, self.tables.total_dim, self.device)
        if weights is not None and (
            weights.dtype != torch.float32 or weights.shape != values.shape
        ):
            raise InputError(f"weights: expected float32 {list(values.shape)}, got {weights.dtype}")
        programs = self.plan.programs(batch)
        if max(programs, len(values)) > _MOST_PROGRAMS:
            raise InputError(f"{len(values)} ids in {batch} samples are too many for a launch")
        if programs == 0:
            return
        long_wide, long_narrow, short_wide, _ = self.plan.kinds
        with self._on_device():
            pooled_kernel[(programs,)](
                self._memory,
                self._features,
                values,
                offsets,
                values if weights is None else weights,
                out,
                batch,
                out.stride(0),
                long_wide,
                long_narrow,
                short_wide,
                self.plan.wide_chunks,
                **self.constants,
                OUT_ALIGNMENT=_out_alignment(out, (*self.tables.dims, *self.tables.columns)),
                WEIGHTED=weights is not None,
                WIDE_ROWS=self.plan.wide[0],
                WIDE_WORDS=self.plan.wide[1],
                NARROW_ROWS=self.plan.narrow[0],
                NARROW_WORDS=self.plan.narrow[1],
                num_warps=self.plan.warps,
                maxnreg=self._most_registers,
                # Triton 3.10 changes its default.
                enable_fp_fusion=True,
            )

    def _on_device(self) -> contextlib.AbstractContextManager[Any]:
        if self.device.type == "cuda":
            return torch.cuda.device(self.device)
        return contextlib.nullcontext()


def _feature_lines(tables: DeviceTables) -> Tensor:
    """The kernels' feature table, int64 `[F, 8]`, in the order of `triton_bags`'s fields."""
    header = tables.row_format.header_bytes
    fields = (
        tables.positions,
        [(offset + header) // WORD_BYTES for offset in tables.byte_offsets],
        [stride // WORD_BYTES for stride in tables.row_strides],
        tables.first_rows,
        tables.rows,
        tables.dims,
        tables.columns,
        tables.means,
    )
    return torch.tensor(fields, dtype=torch.int64).t().contiguous()


def _out_alignment(out: Tensor, dims: Sequence[int]) -> int:
    """Multiple, in elements, of every line's and column's begin: 16 bytes, or 1."""
    whole = WIDE_BYTES // out.element_size()
    common = math.gcd(out.data_ptr() // out.element_size(), out.stride(0), *dims)
    return whole if common % whole == 0 else 1


def _check_ids(values: Tensor, offsets: Tensor, device: torch.device) -> None:
    for name, tensor in (("values", values), ("offsets", offsets)):
        if tensor.dtype not in {torch.int32, torch.int64} or tensor.dim() != 1:
            raise InputError(f"{name}: expected int32 or int64 [N], got {tensor.dtype}")
        if tensor.device != device or not tensor.is_contiguous():
            raise InputError(f"{name}: expected contiguous on {device}, got {tensor.device}")


def _check_out(out: Tensor, width: int, device: torch.device) -> None:
    if out.dtype not in {torch.float32, torch.bfloat16} or out.dim() != 2:
        raise InputError(f"out: expected float32 or bfloat16 [B, {width}], got {out.dtype}")
    if out.shape[1] < width or out.stride(1) != 1 or out.device != device:
        raise InputError(
            f"out: expected [B, {width} or more], its lines contiguous, on {device}; got "
            f"{list(out.shape)} of strides {out.stride()} on {out.device}"
        )
