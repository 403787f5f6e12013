"""Fused lookups by our compiled code: any row format, any dim, in place on the stored rows.

Its source is in `native/`, which has the pseudocode. On AVX2, AVX-512 and 64-bit ARM its
bits are those of FBGEMM's kernel on AVX2; SSE2 has no fused product and sum.
"""

import ctypes
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.abi import lookup as abi
from kernels.bags import Bags
from kernels.errors import InputError, InternalError
from kernels.fused_tables import FusedTables
from kernels.machine import InstructionSet, chosen_set, instruction_sets
from kernels.native_library import address_of
from kernels.row_format import RowFormat

_FORMATS = {row_format: abi.Format[row_format.name] for row_format in RowFormat}


_GATHERED_ROWS = 256  # that a bare gather writes over and over: they stay in the first cache


class NativeBackend:
    """One compiled call over all features of some tables."""

    name: ClassVar[str] = "native"
    out_dtypes: ClassVar[frozenset[torch.dtype]] = frozenset({torch.float32, torch.bfloat16})

    def __init__(
        self, tables: FusedTables, *, instruction_set: InstructionSet | None = None
    ) -> None:
        """Prepares the kernel's constants, by default for the fastest instruction set."""
        reason = self.refusal(tables)
        if reason is not None:
            raise InputError(reason)
        self.instruction_set = chosen_set(instruction_set, "native")
        # Held, because the kernel is given addresses.
        self._memory, self._overlays = tables.memory, tables.overlays
        self._total_dim = tables.total_dim
        self._format = _FORMATS[tables.row_format]
        self._features = kernel_features(tables)
        self._address = ctypes.addressof(self._features)

    @staticmethod
    def refusal(tables: FusedTables) -> str | None:
        """See `LookupBackend.refusal`."""
        if tables.memory.device.type != "cpu":
            return f"native reads host memory, the tables are on {tables.memory.device}"
        return None

    def pool(
        self, bags: Bags, out: Tensor | None = None, places: NDArray[np.uint64] | None = None
    ) -> Tensor:
        """See `LookupBackend.pool`; `places`, uint64 `[N]` row addresses, replace the ids."""
        batch = bags.lengths.shape[1]
        if out is None:
            out = torch.empty(batch, self._total_dim)
        values, lengths, weights = bags.values, bags.lengths, bags.weights
        values, lengths = values.contiguous(), lengths.contiguous()
        weights = None if weights is None else weights.contiguous()
        lookup = abi.Lookup(
            self._address,
            len(self._features),
            batch,
            values.data_ptr(),
            lengths.data_ptr(),
            None if weights is None else weights.data_ptr(),
            out.data_ptr(),
            out.stride(0),
            self._format,
            out.dtype is torch.bfloat16,
            None if places is None else address_of(places),
        )
        abi.lookup(self.instruction_set, lookup)
        return out


def kernel_features(
    tables: FusedTables, columns: Sequence[int] | None = None
) -> "ctypes.Array[abi.Feature]":
    """The kernel's form of the tables; their memory and overlays must be kept.

    `columns` are the first of each feature in the output; None: they are side by side.
    """
    base = tables.memory.data_ptr()
    columns = columns or tuple(accumulate(tables.dims, initial=0))
    features = (abi.Feature * len(tables.dims))()
    for feature, offset, dim, column, mean in zip(
        features, tables.byte_offsets, tables.dims, columns, tables.means, strict=False
    ):
        feature.rows = base + offset
        feature.row_bytes = tables.row_format.row_bytes(dim)
        feature.dim, feature.column, feature.mean = dim, column, mean
    for feature, overlay in zip(features, tables.overlays, strict=False):
        if overlay is not None:
            feature.overlay = ctypes.addressof(overlay.fields)
    return features


class KernelForCompiledCode(NamedTuple):
    """The kernel, for other compiled code; `formats` has its number of each row format."""

    address: int
    instruction_set: InstructionSet
    formats: Mapping[RowFormat, int]


def kernel_for_compiled_code() -> KernelForCompiledCode:
    """The kernel of this machine's fastest instruction set."""
    address = ctypes.cast(abi.lookup, ctypes.c_void_p).value
    if address is None:
        raise InternalError("the lookup kernel has no address")
    return KernelForCompiledCode(address, max(instruction_sets()), _FORMATS)


def gather_rows(rows: Tensor, ids: Tensor) -> Tensor:
    """Copies stored rows without computation: the limit that lookups are compared with.

    `rows` are uint8 `[n, row_bytes]`, `ids` int64 `[N]` below n. Returns uint8 `[256, row_bytes]`,
    a ring buffer of the rows read last.
    """
    if rows.dtype != torch.uint8 or rows.dim() != 2 or not rows.is_contiguous():
        raise InputError(f"rows: expected uint8 [n, row_bytes], got {rows.dtype}")
    if ids.dtype != torch.int64 or ids.dim() != 1 or not ids.is_contiguous():
        raise InputError(f"ids: expected int64 [N], got {ids.dtype}")
    out = torch.zeros(_GATHERED_ROWS, rows.shape[1], dtype=torch.uint8)
    abi.gather(
        *(rows.data_ptr(), rows.shape[1], ids.data_ptr(), len(ids), out.data_ptr(), _GATHERED_ROWS)
    )
    return out
