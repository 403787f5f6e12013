import pytest
import torch
from torch import Tensor

from kernels.row_format import RowFormat
from kernels.stored_rows import decode
from quant.format_losses import measure_losses, sampled_rows
from quant.sources.table_weight import TableWeight
from quant.sources.weight_source import TensorSource
from tests.reference.row_encoding import encode


def weight_of(rows: Tensor) -> TableWeight:
    return TableWeight(TensorSource({"w": rows}), "w", *rows.shape)


@pytest.mark.parametrize("rows", [1, 7, 8192, 8193, 8300, 20_000, 10**9])
def test_the_sample_is_all_rows_or_spread_over_the_table(rows: int) -> None:
    numbers = sampled_rows(rows)
    assert bool((numbers.diff() > 0).all())
    assert (int(numbers[0]), int(numbers[-1])) == (0, rows - 1)
    assert len(numbers) == min(rows, 8192)


def test_a_small_tables_losses_are_exact() -> None:
    rows = torch.randn(500, 16, generator=torch.Generator().manual_seed(0))
    losses = measure_losses(weight_of(rows), list(RowFormat), torch.ones_like)
    assert losses.sampled_rows == 500
    assert losses.power == pytest.approx(float(rows.double().square().sum()) / 500)
    for row_format in RowFormat:
        error = decode(row_format, encode(row_format, rows), 16) - rows
        expected = float(error.double().square().sum()) / 500
        assert losses.by_format[row_format] == pytest.approx(expected, rel=1e-4)


def test_rows_count_by_how_often_they_are_used() -> None:
    rows = torch.randn(100, 16, generator=torch.Generator().manual_seed(0))
    rows[50:] *= 100
    small = measure_losses(weight_of(rows), [RowFormat.INT4], lambda n: (n < 50).float())
    large = measure_losses(weight_of(rows), [RowFormat.INT4], lambda n: (n >= 50).float())
    assert large.by_format[RowFormat.INT4] > 1000 * small.by_format[RowFormat.INT4]
