"""Protobuf's bytes, written from arrays.

Packed numbers of fixed width are an array's memory, little-endian, so messages made mostly of them
are joined instead of built element by element. Field numbers are below 16, so a tag is one byte.
https://protobuf.dev/programming-guides/encoding/
"""

import struct

import numpy as np
from numpy.typing import NDArray

_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5


def varint(value: int) -> bytes:
    """A nonnegative number, seven bits a byte, the least first."""
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def bytes_field(field: int, payload: bytes) -> bytes:
    """A message, text or packed field; omitted if empty, as in proto3."""
    if not payload:
        return b""
    return b"%c%b%b" % (field << 3 | _LENGTH_DELIMITED, varint(len(payload)), payload)


def message_field(field: int, payload: bytes) -> bytes:
    """A message field, present even if empty."""
    return bytes_field(field, payload) or bytes((field << 3 | _LENGTH_DELIMITED, 0))


def text_field(field: int, text: str) -> bytes:
    """A text field; omitted if empty."""
    return bytes_field(field, text.encode())


def number_field(field: int, value: int) -> bytes:
    """A uint32 or uint64 field; omitted if 0."""
    return bytes((field << 3 | _VARINT,)) + varint(value) if value else b""


def float_field(field: int, value: float) -> bytes:
    """A float field, rounded to fp32."""
    return struct.pack("<Bf", field << 3 | _FIXED32, value)


def fixed64_field(field: int, value: int) -> bytes:
    """A sfixed64 field of an int64, present even if 0."""
    return struct.pack("<Bq", field << 3 | _FIXED64, value)


def packed_field(field: int, numbers: NDArray[np.generic], dtype: str) -> bytes:
    """A packed field of numbers of fixed width, row-major; omitted if empty.

    `dtype` is their little-endian NumPy type: `<u4`, `<i8` or `<f4`.
    """
    return bytes_field(field, numbers.astype(dtype, copy=False).tobytes())
