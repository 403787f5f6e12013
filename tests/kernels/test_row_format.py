import struct

import pytest
import torch

from kernels.row_format import RowFormat
from kernels.stored_rows import decode


@pytest.mark.parametrize(
    ("row_format", "dim", "row_bytes"),
    [
        (RowFormat.INT8, 1, 5),
        (RowFormat.INT8, 3, 7),
        (RowFormat.INT8, 64, 68),
        (RowFormat.BF16, 1, 2),
        (RowFormat.BF16, 3, 6),
        (RowFormat.BF16, 64, 128),
        (RowFormat.FP32, 3, 12),
        (RowFormat.FP16, 3, 6),
        (RowFormat.FP8, 3, 7),
        (RowFormat.INT4, 1, 5),
        (RowFormat.INT4, 3, 6),
        (RowFormat.INT4, 64, 36),
        (RowFormat.INT2, 1, 5),
        (RowFormat.INT2, 5, 6),
        (RowFormat.INT2, 64, 20),
    ],
)
def test_a_row_takes_its_header_and_its_elements(
    row_format: RowFormat, dim: int, row_bytes: int
) -> None:
    assert row_format.row_bytes(dim) == row_bytes


def test_an_int8_row_is_scale_then_bias_then_levels() -> None:
    row = torch.frombuffer(bytearray(struct.pack("<ee3B", 0.5, -1.0, 0, 1, 255)), dtype=torch.uint8)
    decoded = decode(RowFormat.INT8, row.view(1, 7), 3)
    assert decoded.tolist() == [[-1.0, -0.5, 126.5]]


def test_an_int4_row_has_its_first_level_in_the_low_bits() -> None:
    row = torch.frombuffer(bytearray(struct.pack("<ee2B", 2.0, 1.0, 0x21, 0x0F)), dtype=torch.uint8)
    assert decode(RowFormat.INT4, row.view(1, 6), 3).tolist() == [[3.0, 5.0, 31.0]]


def test_an_int2_row_has_its_first_level_in_the_lowest_bits() -> None:
    row = torch.frombuffer(
        bytearray(struct.pack("<ee2B", 1.0, -1.0, 0b11100100, 2)), dtype=torch.uint8
    )
    assert decode(RowFormat.INT2, row.view(1, 6), 5).tolist() == [[-1.0, 0.0, 1.0, 2.0, 1.0]]


def test_an_fp8_row_is_a_scale_then_levels() -> None:
    # e4m3: 0x38 is 1, 0xC0 is -2, 0x7E is 448, the largest.
    row = torch.frombuffer(bytearray(struct.pack("<f3B", 0.5, 0x38, 0xC0, 0x7E)), dtype=torch.uint8)
    assert decode(RowFormat.FP8, row.view(1, 7), 3).tolist() == [[0.5, -1.0, 224.0]]


def test_fp16_and_fp32_rows_are_their_numbers() -> None:
    numbers = (1.5, -2.25)
    for row_format, code in ((RowFormat.FP16, "<2e"), (RowFormat.FP32, "<2f")):
        row = torch.frombuffer(bytearray(struct.pack(code, *numbers)), dtype=torch.uint8)
        assert decode(row_format, row[None], 2).tolist() == [list(numbers)]


def test_a_bf16_row_is_the_upper_halves_of_its_floats() -> None:
    row = torch.tensor([[0x80, 0x3F, 0x00, 0xC0]], dtype=torch.uint8)  # 0x3F80, 0xC000
    assert decode(RowFormat.BF16, row, 2).tolist() == [[1.0, -2.0]]


def test_stored_names_are_the_words_of_specs_and_manifests() -> None:
    names = [str(row_format) for row_format in RowFormat]
    assert names == ["fp32", "fp16", "bf16", "fp8", "int8", "int4", "int2"]
