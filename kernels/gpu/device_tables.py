"""Tables of one row format in a device's memory, for the Triton kernels."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.errors import InputError
from kernels.fused_tables import FusedTables
from kernels.row_format import RowFormat

_WORD_BYTES = 4
_WIDEST_ACCESS_BYTES = 16
_COPIED_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class DeviceTables:
    """The tables of a lookup on a device, one entry a feature; rows may be padded.

    Attributes:
        memory: uint8 `[bytes]` on the device.
        byte_offsets: start of each feature's first row in `memory`, header first.
        row_strides: bytes from one row of a feature's table to the next.
        means: whether a feature's bags are averaged (true) or summed (false).
        first_rows: for a shard, its first row in the whole table; ids are those of the whole table.
        columns: first output column of each feature; None: one after the other.
        positions: the bags that each feature pools, since several may pool the same; None: its own.
    """

    memory: Tensor
    row_format: RowFormat
    byte_offsets: tuple[int, ...]
    row_strides: tuple[int, ...]
    rows: tuple[int, ...]
    dims: tuple[int, ...]
    means: tuple[bool, ...]
    first_rows: tuple[int, ...] = ()
    columns: tuple[int, ...] | None = None
    positions: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        """Raises InputError, with expectation and actual values, for inconsistent fields."""
        features = len(self.dims)
        for name in ("first_rows", "columns", "positions"):
            numbers = getattr(self, name)
            if numbers and len(numbers) != features:
                raise InputError(f"{name}: expected {features}, got {len(numbers)}")

    @property
    def total_dim(self) -> int:
        """Width of the pooled output; its minimum where `columns` are given."""
        if self.columns is not None:
            return max(column + dim for column, dim in zip(self.columns, self.dims, strict=True))
        return sum(self.dims)

    @property
    def bag_features(self) -> int:
        """Least number of features whose bags must be given."""
        return len(self.dims) if self.positions is None else max(self.positions) + 1

    @property
    def payload_alignment(self) -> int:
        """Largest access to rows, of 1, 2, 4, 8 and 16 bytes, that divides payload addresses.

        Accesses of that size beyond the last row end inside the memory.
        """
        header = self.row_format.header_bytes
        addresses = [self.memory.data_ptr() + offset + header for offset in self.byte_offsets]
        alignment = math.gcd(_WIDEST_ACCESS_BYTES, *addresses, *self.row_strides)
        while not all(
            offset + header + (rows - 1) * stride + rounded_up(payload, alignment)
            <= self.memory.numel()
            for offset, rows, stride, payload in zip(
                self.byte_offsets, self.rows, self.row_strides, self._payload_bytes(), strict=True
            )
        ):
            alignment //= 2
        return alignment

    def _payload_bytes(self) -> list[int]:
        header = self.row_format.header_bytes
        return [self.row_format.row_bytes(dim) - header for dim in self.dims]


def in_place(tables: FusedTables) -> DeviceTables:
    """Tables in place, their rows one after the other."""
    row_bytes = tuple(tables.row_format.row_bytes(dim) for dim in tables.dims)
    return _device_tables(tables, tables.memory, zip(tables.byte_offsets, row_bytes, strict=True))


def copy_to_device(
    tables: FusedTables, device: torch.device, *, alignment: int = 1
) -> DeviceTables:
    """Copies tables to a device, each payload on a multiple of `alignment` bytes.

    Tables shared by several features are copied once.

    Args:
        alignment: 1 keeps rows as they are; 16 pads them, for loads of 16 bytes.

    Raises:
        InputError: the alignment is not 1, 2, 4, 8 or 16.
    """
    if alignment not in {1, 2, 4, 8, 16}:
        raise InputError(f"alignment: expected 1, 2, 4, 8 or 16 bytes, got {alignment}")
    header = tables.row_format.header_bytes
    places: dict[tuple[int, int, int], tuple[int, int]] = {}
    # Word loads need word addresses, also between tables.
    end, apart = 0, max(alignment, _WORD_BYTES)
    for source in zip(tables.byte_offsets, tables.rows, tables.dims, strict=True):
        if source not in places:
            stride = rounded_up(tables.row_format.row_bytes(source[2]), alignment)
            begin = end + (-(end + header)) % apart
            places[source] = begin, stride
            end = begin + source[1] * stride
    # The last payload is read to the end of its last access.
    memory = torch.zeros(end + header + alignment, dtype=torch.uint8, device=device)
    for (offset, rows, dim), (begin, stride) in places.items():
        row_bytes = tables.row_format.row_bytes(dim)
        stored = tables.memory[offset : offset + rows * row_bytes].view(rows, row_bytes)
        placed = memory[begin : begin + rows * stride].view(rows, stride)[:, :row_bytes]
        # A copy to lines that lie apart needs as much memory again on the device: a part at a time.
        step = max(1, _COPIED_BYTES // stride)
        for first in range(0, rows, step):
            placed[first : first + step].copy_(stored[first : first + step])
    chosen = [
        places[source] for source in zip(tables.byte_offsets, tables.rows, tables.dims, strict=True)
    ]
    return _device_tables(tables, memory, chosen)


def rounded_up(count: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is at least `count`."""
    return -(-count // multiple) * multiple


def _device_tables(
    tables: FusedTables,
    memory: Tensor,
    places: Iterable[tuple[int, int]],
) -> DeviceTables:
    begins, strides = zip(*places, strict=True)
    return DeviceTables(
        memory=memory,
        row_format=tables.row_format,
        byte_offsets=begins,
        row_strides=strides,
        rows=tables.rows,
        dims=tables.dims,
        means=tables.means,
    )
