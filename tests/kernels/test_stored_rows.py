import pytest
import torch

from kernels.errors import InputError
from kernels.row_format import RowFormat
from kernels.stored_rows import decode, select_columns
from tests.reference.row_encoding import encode


@pytest.mark.parametrize("row_format", RowFormat)
@pytest.mark.parametrize(("start", "stop"), [(0, 7), (0, 1), (2, 5), (6, 7)])
def test_selected_columns_decode_to_those_columns(
    row_format: RowFormat, start: int, stop: int
) -> None:
    stored = encode(row_format, torch.randn(9, 7, generator=torch.Generator().manual_seed(1)))
    per_byte = max(1, 8 // row_format.element_bits)
    if start % per_byte or (stop % per_byte and stop != 7):
        with pytest.raises(InputError, match=f"share a byte .* multiples of {per_byte}"):
            select_columns(row_format, stored, start, stop)
        return
    columns = select_columns(row_format, stored, start, stop)
    assert columns.is_contiguous()
    wanted = decode(row_format, stored, 7)[:, start:stop]
    assert torch.equal(decode(row_format, columns, stop - start), wanted)
