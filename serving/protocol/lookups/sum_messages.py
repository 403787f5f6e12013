"""Sums in a LookupResponse (protos/sharded_infer/v1/shard_host.proto), by NumPy."""

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray

from sharded_infer.errors import InternalError
from sharded_infer.tensors import tensor_of
from sharded_infer.v1.wire import message_field

# Bytes of a number.
FP32_BYTES, BF16_BYTES = 4, 2
_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}
# Tags of a LookupResponse, and the last field that changes which sums are sent.
_SUMS, _FILLER = 1 << 3 | _LENGTH_DELIMITED, 2 << 3
_LAST_FIELD = 4
_MOST_SHIFT = 63  # of a varint's bits


def write_sums(sums: Sequence[NDArray[np.float32]], sum_bytes: Sequence[int] = ()) -> bytes:
    """Serializes a LookupResponse.

    Args:
        sums: for each group fp32 `[R, columns]`.
        sum_bytes: bytes of a number in each group: 4, or 2 for bf16; default: 4.
    """
    widths = sum_bytes or [FP32_BYTES] * len(sums)
    fields = (_sums_field(one, width) for one, width in zip(sums, widths, strict=True))
    return b"".join(message_field(1, field) for field in fields)


def _sums_field(sums: NDArray[np.float32], width: int) -> bytes:
    if width == FP32_BYTES:
        return np.ascontiguousarray(sums, "<f4").tobytes()
    rounded = tensor_of(np.ascontiguousarray(sums)).bfloat16().view(torch.int16)
    return rounded.numpy().astype("<i2").tobytes()


def read_sums(
    message: memoryview, bags: Sequence[int], sum_bytes: Sequence[int] = ()
) -> list[NDArray[np.float32]]:
    """Reads a LookupResponse without rows, for `bags`, the R of each group.

    Args:
        bags: R of each group.
        sum_bytes: as for `write_sums`.

    Returns:
        For each group fp32 `[R, columns]`; views of the message, unless sent in bf16.

    Raises:
        InternalError: the bytes are not such a message, or not one for these groups.
    """
    # One more than expected is enough to refuse: a message may have millions.
    fields = list(islice(_fields(message), len(bags) + 1))
    widths = sum_bytes or [FP32_BYTES] * len(bags)
    if len(fields) != len(bags) or any(
        len(field) % (width * rows) for field, rows, width in zip(fields, bags, widths, strict=True)
    ):
        raise InternalError(
            f"the answer has sums of {[len(field) for field in fields]} bytes, expected numbers of "
            f"{list(widths)} bytes, of {list(bags)} rows"
        )
    return [
        _fp32_of(field, width).reshape(rows, -1)
        for field, rows, width in zip(fields, bags, widths, strict=True)
    ]


def _fp32_of(field: memoryview, width: int) -> NDArray[np.float32]:
    if width == FP32_BYTES:
        return np.frombuffer(field, "<f4")
    # A bf16 is the upper half of an fp32.
    return (np.frombuffer(field, "<u2").astype(np.uint32) << 16).view(np.float32)


def _fields(message: memoryview) -> Iterator[memoryview]:
    """The sums of each group, without copies: they are most of the message's bytes."""
    at = 0
    while at < len(message):
        tag = message[at]
        if tag not in (_SUMS, _FILLER):
            at = _newer_field_end(message, at)
            continue
        number, at = _varint(message, at + 1)
        if tag == _FILLER:
            continue
        if number > len(message) - at:
            raise InternalError(f"the answer is not a LookupResponse: byte {at}")
        yield message[at : at + number]
        at += number


def _newer_field_end(message: memoryview, at: int) -> int:
    """End of a field that a newer release may have added."""
    tag, at = _varint(message, at)
    field, kind = tag >> 3, tag & 7
    size = _FIXED_BYTES.get(kind)
    if kind in (_VARINT, _LENGTH_DELIMITED):
        number, at = _varint(message, at)
        size = number if kind == _LENGTH_DELIMITED else 0
    if field <= _LAST_FIELD or size is None or size > len(message) - at:
        raise InternalError(f"the answer is not a LookupResponse: byte {at}")
    return at + size


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """A number of at most ten bytes, possibly padded, and its end."""
    number = 0
    for shift in range(0, _MOST_SHIFT + 1, 7):
        if at >= len(message):
            break
        byte = message[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise InternalError(f"the answer is not a LookupResponse: byte {at}")
