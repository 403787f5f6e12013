import pytest
import torch

from kernels.errors import InputError
from kernels.row_format import RowFormat
from kernels.stored_rows import decode, select_columns
from quant.encoding.rowwise import encode


@pytest.mark.parametrize("row_format", RowFormat)
def test_rows_that_are_not_contiguous_decode_alike(row_format: RowFormat) -> None:
    row_bytes = row_format.row_bytes(5)
    stored = encode(row_format, torch.randn(6, 5, generator=torch.Generator().manual_seed(0)))
    wide = torch.cat([stored, stored], dim=1)[:, :row_bytes]
    assert not wide.is_contiguous()
    assert torch.equal(decode(row_format, wide, 5), decode(row_format, stored, 5))


@pytest.mark.parametrize("row_format", RowFormat)
@pytest.mark.parametrize(
    "rows",
    [
        torch.zeros(2, 8, dtype=torch.uint8),
        torch.zeros(14, dtype=torch.uint8),
        torch.zeros(2, 7, dtype=torch.int8),
    ],
)
def test_decode_refuses_rows_of_another_size_or_dtype(
    row_format: RowFormat, rows: torch.Tensor
) -> None:
    with pytest.raises(InputError, match=rf"expected uint8 \[n, .*for {row_format} rows of dim 3"):
        decode(row_format, rows, 3)


@pytest.mark.parametrize("row_format", RowFormat)
@pytest.mark.parametrize(("start", "stop"), [(0, 7), (0, 1), (2, 5), (6, 7)])
def test_selected_columns_decode_to_those_columns(
    row_format: RowFormat, start: int, stop: int
) -> None:
    rows = torch.randn(9, 7, generator=torch.Generator().manual_seed(1))
    stored = encode(row_format, rows)
    per_byte = max(1, 8 // row_format.element_bits)
    if start % per_byte or (stop % per_byte and stop != 7):
        with pytest.raises(InputError, match=f"share a byte .* multiples of {per_byte}"):
            select_columns(row_format, stored, start, stop)
        return
    columns = select_columns(row_format, stored, start, stop)
    assert columns.is_contiguous()
    wanted = decode(row_format, stored, 7)[:, start:stop]
    assert torch.equal(decode(row_format, columns, stop - start), wanted)
