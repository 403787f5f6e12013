import struct

import pytest
import torch

from kernels.row_format import RowFormat
from kernels.stored_rows import decode


@pytest.mark.parametrize(
    ("row_format", "row", "numbers"),
    [
        # A scale, a bias, then levels.
        (RowFormat.INT8, struct.pack("<ee3B", 0.5, -1.0, 0, 1, 255), [-1.0, -0.5, 126.5]),
        # The first level is in the lowest bits.
        (RowFormat.INT4, struct.pack("<ee2B", 2.0, 1.0, 0x21, 0x0F), [3.0, 5.0, 31.0]),
        (RowFormat.INT2, struct.pack("<ee2B", 1.0, -1.0, 0xE4, 2), [-1.0, 0.0, 1.0, 2.0, 1.0]),
        # A scale, then e4m3: 0x38 is 1, 0xC0 is -2, 0x7E is 448, the largest.
        (RowFormat.FP8, struct.pack("<f3B", 0.5, 0x38, 0xC0, 0x7E), [0.5, -1.0, 224.0]),
        (RowFormat.FP16, struct.pack("<2e", 1.5, -2.25), [1.5, -2.25]),
        (RowFormat.FP32, struct.pack("<2f", 1.5, -2.25), [1.5, -2.25]),
        # The upper halves of floats.
        (RowFormat.BF16, struct.pack("<2H", 0x3F80, 0xC000), [1.0, -2.0]),
    ],
)
def test_a_stored_row_decodes_to_its_numbers(
    row_format: RowFormat, row: bytes, numbers: list[float]
) -> None:
    assert row_format.row_bytes(len(numbers)) == len(row)
    stored = torch.frombuffer(bytearray(row), dtype=torch.uint8)
    assert decode(row_format, stored[None], len(numbers)).tolist() == [numbers]


def test_stored_names_are_the_words_of_specs_and_manifests() -> None:
    names = [str(row_format) for row_format in RowFormat]
    assert names == ["fp32", "fp16", "bf16", "fp8", "int8", "int4", "int2"]
