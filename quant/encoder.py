"""Encoding of fp32 rows as stored rows, with their errors.

Compiled code (`native/encode/`) encodes integer rows, without the GIL: threads encode in parallel.
"""

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.errors import InputError
from kernels.machine import InstructionSet, chosen_set, instruction_sets
from kernels.row_format import HEADER_BYTES, RowFormat
from kernels.stored_rows import FLOATS, decode
from quant.abi import encode as abi
from quant.abi.encode import Refusal

_REASONS = {
    Refusal.NOT_FINITE: "holds NaN, infinity, or a range beyond fp32",
    Refusal.BEYOND_HALF: "its scale or bias is beyond fp16's range (65504)",
}
_FP8_LARGEST = 448.0  # of float8 e4m3 (OCP 8-bit floating point specification, 2023)


class UnrepresentableRowError(InputError):
    """A row that its format cannot represent; `row` is its index in the given rows."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(f"row {row}: {reason}")
        self.row = row
        self.reason = reason


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Stored rows uint8 `[n, row_bytes]`, and each row's error after decoding, `[n]`.

    Sums are fp64 where fp32 may overflow: in formats with fp32's range.

    Attributes:
        squared_errors: summed over each row.
        squares: of the values, summed over each row.
        max_errors: the largest absolute error of each row.
        minmax_squared_errors: as `squared_errors` with each row's minimum and maximum as its range;
            None if ranges are not searched.
    """

    stored: Tensor
    squared_errors: Tensor
    squares: Tensor
    max_errors: Tensor
    minmax_squared_errors: Tensor | None = None


def squares_of(rows: Tensor) -> Tensor:
    """Sum of the squares of each row `[n, dim]`, fp64 `[n]`."""
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    return norms.square_()


def encoder_name() -> str:
    """The encoder of integer rows: `native` with its instruction set."""
    return f"native {max(instruction_sets()).name.lower()}"


def encode_rows(
    row_format: RowFormat, rows: Tensor, *, clip: bool = True, out: Tensor | None = None
) -> EncodedRows:
    """Encode fp32 rows `[n, dim]` as stored rows, with their errors.

    Args:
        clip: search the range of int4 and int2 rows.
        out: uint8 `[bytes]`, memory that the rows may use.

    Raises:
        UnrepresentableRowError: a row holds NaN or infinity, or exceeds the format's range.
        InputError: `rows` is not fp32 `[n, dim]`, with dims of up to 8192 for integers.
    """
    if row_format.is_integer:
        return encode_integers(row_format, rows, clip=clip, out=out)
    if rows.dtype != torch.float32 or rows.dim() != 2:
        raise InputError(f"rows: expected float32 [n, dim], got {rows.dtype} {list(rows.shape)}")
    stored = _encode_fp8(rows) if row_format is RowFormat.FP8 else _encode_float(row_format, rows)
    squares = squares_of(rows)
    if row_format is RowFormat.FP32:
        none = torch.zeros(len(rows))
        return EncodedRows(stored, none, squares, none)
    error = decode(row_format, stored, rows.shape[1]).sub_(rows)
    largest = error.abs().amax(1) if len(rows) else torch.zeros(0)
    return EncodedRows(stored, squares_of(error), squares, largest)


def encode_zeroing(
    row_format: RowFormat, rows: Tensor, *, clip: bool = True, out: Tensor | None = None
) -> tuple[EncodedRows, int]:
    """Encodes rows like `encode_rows`, with NaN and infinities stored as 0, and counts these.

    Errors are those of the finite values. Raises UnrepresentableRowError if a row exceeds the
    format's range.
    """
    try:
        return encode_rows(row_format, rows, clip=clip, out=out), 0
    except UnrepresentableRowError:
        finite = torch.isfinite(rows)
        strange = int((~finite).sum())
        if not strange:
            raise
    rows = torch.where(finite, rows, 0.0)
    return encode_rows(row_format, rows, clip=clip, out=out), strange


def encode_integers(
    row_format: RowFormat,
    rows: Tensor,
    *,
    clip: bool = True,
    out: Tensor | None = None,
    instruction_set: InstructionSet | None = None,
) -> EncodedRows:
    """`encode_rows` as int8, int4 or int2; `instruction_set` None is the fastest."""
    chosen = chosen_set(instruction_set, "the encoder")
    if rows.dtype != torch.float32 or rows.dim() != 2 or not 1 <= rows.shape[1] <= abi.MAX_DIM:
        raise InputError(
            f"rows: expected float32 [n, dim], dim 1 to {abi.MAX_DIM}, got {rows.dtype} "
            f"{list(rows.shape)}"
        )
    if not row_format.is_integer:
        raise InputError(f"row format: expected int8, int4 or int2, got {row_format}")
    rows = rows.contiguous()
    count, dim = rows.shape
    stored = _room(out, count, row_format.row_bytes(dim))
    figures = torch.empty(4, count)
    squared, minmax, squares, largest = figures
    searched = clip and row_format is not RowFormat.INT8
    encoding = abi.Encoding(
        rows=rows.data_ptr(),
        count=count,
        dim=dim,
        bits=row_format.element_bits,
        clip=int(searched),
        stored=stored.data_ptr(),
        squared_errors=squared.data_ptr(),
        minmax_errors=minmax.data_ptr(),
        squares=squares.data_ptr(),
        max_errors=largest.data_ptr(),
    )
    refusal = ctypes.c_int32(0)
    done = abi.encode(chosen, encoding, ctypes.byref(refusal))
    if refusal.value:
        raise UnrepresentableRowError(done, _REASONS[Refusal(refusal.value)])
    return EncodedRows(stored, squared, squares, largest, minmax if searched else None)


def _room(out: Tensor | None, count: int, row_bytes: int) -> Tensor:
    if out is None or len(out) < count * row_bytes:
        return torch.empty(count, row_bytes, dtype=torch.uint8)
    return out[: count * row_bytes].view(count, row_bytes)


def _encode_float(row_format: RowFormat, rows: Tensor) -> Tensor:
    _refuse(~torch.isfinite(rows).all(1), "holds NaN or infinity")
    stored = rows.to(FLOATS[row_format])
    _refuse(~torch.isfinite(stored).all(1), f"holds a value beyond {row_format}'s range")
    return stored.contiguous().view(torch.uint8)


def _encode_fp8(rows: Tensor) -> Tensor:
    """Scale each row so that its largest value becomes fp8's: scale = max |x| / 448."""
    # NaN and infinity both survive into a row's range.
    low, high = torch.aminmax(rows, dim=1)
    _refuse(~torch.isfinite(high - low), _REASONS[Refusal.NOT_FINITE])
    scale = rows.abs().amax(1, keepdim=True) / _FP8_LARGEST
    scale = torch.where(scale == 0, 1.0, scale)
    # Through one axis: torch cannot view the bytes of a column without rows.
    head = scale.reshape(-1).view(torch.uint8).view(len(rows), HEADER_BYTES)
    # Rounding of the scale can push the largest value over the edge, where fp8 has only NaN.
    levels = (rows / scale).clamp_(-_FP8_LARGEST, _FP8_LARGEST).to(torch.float8_e4m3fn)
    return torch.cat([head, levels.view(torch.uint8)], dim=1)


def _refuse(bad: Tensor, reason: str) -> None:
    if bool(bad.any()):
        raise UnrepresentableRowError(int(bad.nonzero()[0]), reason)
