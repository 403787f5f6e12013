"""Tables of one row format in a device's memory, for the Triton kernels."""

import math
from dataclasses import dataclass

from torch import Tensor

from kernels.errors import InputError
from kernels.gpu.row_stride import WIDE_BYTES, WORD_BYTES
from kernels.row_format import RowFormat


@dataclass(frozen=True, slots=True)
class DeviceTables:
    """The tables of a lookup on a device, one entry a feature; rows may be padded.

    Attributes:
        memory: uint8 `[bytes]` on the device, from a multiple of 16 bytes on.
        byte_offsets: start of each feature's first row in `memory`, header first.
        row_strides: bytes from one row of a feature's table to the next.
        means: whether a feature's bags are averaged (true) or summed (false).
        first_rows: of a shard in the whole table; ids are those of the whole table.
        columns: first output column of each feature.
        positions: the bags that each feature pools; several may pool the same.
    """

    memory: Tensor
    row_format: RowFormat
    byte_offsets: tuple[int, ...]
    row_strides: tuple[int, ...]
    rows: tuple[int, ...]
    dims: tuple[int, ...]
    means: tuple[bool, ...]
    first_rows: tuple[int, ...]
    columns: tuple[int, ...]
    positions: tuple[int, ...]

    @property
    def total_dim(self) -> int:
        """Least width of the pooled output."""
        return max(column + dim for column, dim in zip(self.columns, self.dims, strict=True))

    @property
    def payload_alignment(self) -> int:
        """Largest access to rows, of 4, 8 and 16 bytes, that divides payload addresses.

        Accesses of that size beyond the last row end inside the memory. Raises InputError if not
        even words fit.
        """
        header = self.row_format.header_bytes
        payloads = [self.row_format.row_bytes(dim) - header for dim in self.dims]
        begins = [offset + header for offset in self.byte_offsets]
        alignment = math.gcd(WIDE_BYTES, *begins, *self.row_strides)
        while not all(
            begin + (rows - 1) * stride + rounded_up(payload, alignment) <= self.memory.numel()
            for begin, rows, stride, payload in zip(
                begins, self.rows, self.row_strides, payloads, strict=True
            )
        ):
            alignment //= 2
        if alignment < WORD_BYTES or self.memory.data_ptr() % WIDE_BYTES:
            raise InputError(
                f"memory: expected at a multiple of {WIDE_BYTES} bytes, with payloads at "
                f"multiples of {WORD_BYTES}, got rows from {self.memory.data_ptr()} + "
                f"{list(self.byte_offsets)}, {list(self.row_strides)} apart"
            )
        return alignment


def rounded_up(count: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is at least `count`."""
    return -(-count // multiple) * multiple
