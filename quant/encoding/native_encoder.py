"""The native encoder of integer rows, if the package was built with a compiler.

Its source is in `quant/native/`. Calls release the GIL, so threads encode in parallel.
"""

import ctypes

import torch
from torch import Tensor

from kernels.errors import InputError
from kernels.machine import InstructionSet, chosen_set
from kernels.native_library import load_library
from kernels.row_format import RowFormat
from quant.encoding.encoded_rows import EncodedRows, UnrepresentableRowError

MAX_DIM = 8192
_REASONS = {
    1: "holds NaN, infinity, or a range beyond fp32",
    2: "its scale or bias is beyond fp16's range (65504)",
}


class _Encoding(ctypes.Structure):
    """`Encoding` of `quant/native/encode.h`."""

    _fields_ = (
        ("rows", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("dim", ctypes.c_int64),
        ("bits", ctypes.c_int32),
        ("clip", ctypes.c_int32),
        ("stored", ctypes.c_void_p),
        ("squared_errors", ctypes.c_void_p),
        ("minmax_errors", ctypes.c_void_p),
        ("squares", ctypes.c_void_p),
        ("max_errors", ctypes.c_void_p),
    )


def _load() -> ctypes.CDLL:
    library = load_library("quant")
    library.sharded_infer_encode.restype = ctypes.c_int64
    library.sharded_infer_encode.argtypes = (
        ctypes.c_int32,
        ctypes.POINTER(_Encoding),
        ctypes.POINTER(ctypes.c_int32),
    )
    return library


_LIBRARY = _load()


def encode_native(
    row_format: RowFormat,
    rows: Tensor,
    *,
    clip: bool = True,
    out: Tensor | None = None,
    instruction_set: InstructionSet | None = None,
) -> EncodedRows:
    """Encode fp32 rows `[n, dim]`, dim at most 8192, as int8, int4 or int2, with their errors.

    `clip` searches the range of int4 and int2 rows; `out`, uint8 `[bytes]`, is used if large
    enough. `instruction_set` None is the fastest.

    Raises:
        UnrepresentableRowError: a row holds NaN or infinity, or exceeds fp16's range.
        InputError: the rows, the format or the instruction set is not supported.
    """
    chosen = chosen_set(instruction_set, "the encoder")
    if rows.dtype != torch.float32 or rows.dim() != 2 or not 1 <= rows.shape[1] <= MAX_DIM:
        raise InputError(f"rows: expected float32 [n, dim], got {rows.dtype} {list(rows.shape)}")
    if not row_format.is_integer:
        raise InputError(f"row format: expected int8, int4 or int2, got {row_format}")
    rows = rows.contiguous()
    count, dim = rows.shape
    stored = _room(out, count, row_format.row_bytes(dim))
    figures = torch.empty(4, count)
    squared, minmax, squares, largest = figures
    searched = clip and row_format is not RowFormat.INT8
    encoding = _Encoding(
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
    done = _LIBRARY.sharded_infer_encode(chosen, ctypes.byref(encoding), ctypes.byref(refusal))
    if refusal.value:
        raise UnrepresentableRowError(done, _REASONS[refusal.value])
    return EncodedRows(stored, squared, squares, largest, minmax if searched else None)


def _room(out: Tensor | None, count: int, row_bytes: int) -> Tensor:
    if out is None or len(out) < count * row_bytes:
        return torch.empty(count, row_bytes, dtype=torch.uint8)
    return out[: count * row_bytes].view(count, row_bytes)
