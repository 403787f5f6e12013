import pytest
import torch

from kernels.errors import InputError
from kernels.gpu.device_tables import OutOfRange, copy_to_device, in_place
from kernels.row_format import HEADER_BYTES, RowFormat
from tests.support.lookup_cases import CASES, Case, store

HOST = torch.device("cpu")


@pytest.mark.parametrize("row_format", RowFormat)
@pytest.mark.parametrize("alignment", [1, 2, 4, 8, 16])
def test_a_copy_has_the_same_rows_at_aligned_payloads(
    row_format: RowFormat, alignment: int
) -> None:
    tables = store(CASES["odd dims"], row_format)
    copy = copy_to_device(tables, HOST, alignment=alignment)
    assert copy.payload_alignment % alignment == 0
    for feature, dim in enumerate(tables.dims):
        row_bytes = row_format.row_bytes(dim)
        for row in range(tables.rows[feature]):
            begin = tables.byte_offsets[feature] + row * row_bytes
            copied = copy.byte_offsets[feature] + row * copy.row_strides[feature]
            assert torch.equal(
                tables.memory[begin : begin + row_bytes], copy.memory[copied : copied + row_bytes]
            )


@pytest.mark.parametrize(
    ("row_format", "dim", "alignment"),
    [
        (RowFormat.INT8, 128, 4),
        (RowFormat.INT8, 127, 1),
        (RowFormat.INT8, 126, 2),
        (RowFormat.BF16, 128, 16),
        (RowFormat.FP32, 2, 8),
    ],
)
def test_rows_in_place_are_read_by_what_their_sizes_allow(
    row_format: RowFormat, dim: int, alignment: int
) -> None:
    assert (
        in_place(store(Case([(8, dim)], [(0, False)]), row_format)).payload_alignment == alignment
    )


def test_no_access_ends_beyond_the_memory() -> None:
    # Rows of 16 bytes whose payload of 12 begins at 16: the last would be read 4 bytes too far.
    tables = store(Case([(3, 12)], [(0, False)]), RowFormat.INT8, first_byte=12)
    end = 12 + 3 * (HEADER_BYTES + 12)
    whole = in_place(tables)
    assert whole.payload_alignment == 16
    cut = type(tables)(
        tables.memory[:end], tables.row_format, (12,), tables.rows, tables.dims, tables.means
    )
    assert in_place(cut).payload_alignment == 4


def test_alignments_and_policies_that_do_not_fit_are_refused() -> None:
    tables = store(CASES["sums"], RowFormat.INT8)
    with pytest.raises(InputError, match="alignment: expected 1, 2, 4, 8 or 16 bytes, got 3"):
        copy_to_device(tables, HOST, alignment=3)
    with pytest.raises(InputError, match="policies: expected one for each of 2, got 1"):
        in_place(tables, [OutOfRange.WRAP])
