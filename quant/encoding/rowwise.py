"""Row-wise quantization: fp32 rows to stored rows."""

import torch
from torch import Tensor

from kernels.errors import InputError
from kernels.row_format import HEADER_BYTES, RowFormat
from kernels.stored_rows import pack
from quant.encoding.clipping import levels_of, scale_and_bias, search_range
from quant.encoding.encoded_rows import UnrepresentableRowError

_FLOATS = {
    RowFormat.FP32: torch.float32,
    RowFormat.FP16: torch.float16,
    RowFormat.BF16: torch.bfloat16,
}
_FP8_LARGEST = 448.0  # of float8 e4m3 (OCP 8-bit floating point specification, 2023)


def encode(row_format: RowFormat, rows: Tensor, *, clip: bool = True) -> Tensor:
    """Encode fp32 rows `[n, dim]` as uint8 `[n, row_format.row_bytes(dim)]`.

    `clip` searches the range of int4 and int2 rows (`quant/encoding/clipping.py`) instead of taking
    each row's minimum and maximum.

    Raises:
        UnrepresentableRowError: a row holds NaN or infinity, or exceeds the format's range.
        InputError: `rows` is not fp32 `[n, dim]`.
    """
    if rows.dtype != torch.float32 or rows.dim() != 2:
        raise InputError(f"rows: expected float32 [n, dim], got {rows.dtype} {list(rows.shape)}")
    if row_format in _FLOATS:
        return _encode_float(row_format, rows)
    # NaN and infinity both survive into a row's minimum or range, so they need no pass of their
    # own.
    low, high = torch.aminmax(rows, dim=1, keepdim=True)
    _refuse(~torch.isfinite(high - low)[:, 0], "holds NaN, infinity, or a range beyond fp32")
    if row_format is RowFormat.FP8:
        return _encode_fp8(rows)
    searched = clip and row_format is not RowFormat.INT8
    return _encode_packed(row_format, rows, low, high, clip=searched)


def _encode_float(row_format: RowFormat, rows: Tensor) -> Tensor:
    _refuse(~torch.isfinite(rows).all(1), "holds NaN or infinity")
    stored = rows.to(_FLOATS[row_format])
    _refuse(~torch.isfinite(stored).all(1), f"holds a value beyond {row_format}'s range")
    return stored.contiguous().view(torch.uint8)


def _encode_fp8(rows: Tensor) -> Tensor:
    """Scale each row so that its largest value becomes fp8's: scale = max |x| / 448."""
    scale = rows.abs().amax(1, keepdim=True) / _FP8_LARGEST
    scale = torch.where(scale == 0, 1.0, scale)
    # Through one axis: torch cannot view the bytes of a column without rows.
    head = scale.reshape(-1).view(torch.uint8).view(len(rows), HEADER_BYTES)
    # Rounding of the scale can push the largest value over the edge, where fp8 has only NaN.
    levels = (rows / scale).clamp_(-_FP8_LARGEST, _FP8_LARGEST).to(torch.float8_e4m3fn)
    return torch.cat([head, levels.view(torch.uint8)], dim=1)


def _encode_packed(
    row_format: RowFormat, rows: Tensor, low: Tensor, high: Tensor, *, clip: bool
) -> Tensor:
    """Without clip, FBGEMM's `FloatToFusedNBitRowwiseQuantizedSBHalf`, bit for bit.

    TorchRec quantizes with it, at 8 bits too: levels are counted from the stored scale and bias.
    FBGEMM's other int8, `quantize_embs`, counts them from the exact range and decodes with the
    rounded one.
    """
    bits = row_format.element_bits
    scale, bias = scale_and_bias(low, high, bits)
    finite = torch.isfinite(scale) & torch.isfinite(bias)
    _refuse(~finite[:, 0], "its scale or bias is beyond fp16's range (65504)")
    if clip:
        scale, bias = scale_and_bias(*search_range(rows, bits), bits)
    levels = levels_of(rows, scale, bias, bits).to(torch.uint8)
    head = torch.cat([scale, bias], dim=1).view(torch.uint8)
    return torch.cat([head, pack(levels, bits)], dim=1)


def _refuse(bad: Tensor, reason: str) -> None:
    if bool(bad.any()):
        raise UnrepresentableRowError(int(bad.nonzero()[0]), reason)
