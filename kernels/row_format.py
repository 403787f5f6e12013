"""Row formats: the exact bytes of one stored row. What reads them back is `stored_rows`.

| format | bytes of a row of dim D | layout |
| --- | --- | --- |
| fp32 | 4 D | D single-precision values |
| fp16 | 2 D | D half-precision values |
| bf16 | 2 D | D bfloat16 values |
| fp8 | 4 + D | fp32 scale, D float8 e4m3 values q; value = scale * q |
| int8 | 4 + D | fp16 scale, fp16 bias, D unsigned bytes q; value = scale * q + bias |
| int4 | 4 + ceil(D / 2) | as int8, two q a byte, the first in the low bits |
| int2 | 4 + ceil(D / 4) | as int8, four q a byte, the first in the lowest bits |

fp32, fp16, int8, int4 and int2 rows are byte for byte those of FBGEMM's inference table-batched
embedding with row alignment 1 (scale and bias at the head of the row), so its kernel reads our
tables in place; it knows no row whose last byte is not full. fp8 is e4m3 of OCP's 8-bit floating
point specification (2023), which has no infinities. All values are little-endian.
"""

from enum import StrEnum

HEADER_BYTES = 4  # one fp16 scale and one fp16 bias, or one fp32 scale


class RowFormat(StrEnum):
    """Format of a stored row; the value is the name used in specs, manifests and metrics."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"
    INT8 = "int8"
    INT4 = "int4"
    INT2 = "int2"

    @property
    def is_integer(self) -> bool:
        """True if rows are unsigned integers with a scale and a bias."""
        return self in {RowFormat.INT8, RowFormat.INT4, RowFormat.INT2}

    @property
    def header_bytes(self) -> int:
        """Bytes before the row's first element (scale and bias)."""
        return HEADER_BYTES if self.is_integer or self is RowFormat.FP8 else 0

    @property
    def element_bits(self) -> int:
        """Bits of one element of the row."""
        return _ELEMENT_BITS[self]

    def row_bytes(self, dim: int) -> int:
        """Bytes of one row of `dim` elements."""
        return self.header_bytes + -(-self.element_bits * dim // 8)


_ELEMENT_BITS = {
    RowFormat.FP32: 32,
    RowFormat.FP16: 16,
    RowFormat.BF16: 16,
    RowFormat.FP8: 8,
    RowFormat.INT8: 8,
    RowFormat.INT4: 4,
    RowFormat.INT2: 2,
}
