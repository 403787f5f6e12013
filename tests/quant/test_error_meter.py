"""A table's figures, against direct computations in double precision."""

import numpy as np
import pytest
import torch

from kernels.row_format import RowFormat, decode
from quant.report import ErrorMeter
from quant.rowwise import encode


@pytest.mark.parametrize("row_format", RowFormat)
@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_figures_are_those_of_the_whole_table_however_it_was_cut(
    row_format: RowFormat, chunk: int
) -> None:
    rows = torch.randn(20, 7, generator=torch.Generator().manual_seed(0)) * 3 + 1
    stored = encode(row_format, rows)
    meter = ErrorMeter("ads", row_format, 7)
    for part, bytes_ in zip(rows.split(chunk), stored.split(chunk), strict=True):
        meter.add(part, bytes_)
    report = meter.report()
    exact = rows.double().numpy()
    error = decode(row_format, stored, 7).double().numpy() - exact
    assert (report.name, report.row_format, report.rows, report.dim) == ("ads", row_format, 20, 7)
    assert report.fp32_bytes == 20 * 7 * 4
    assert report.stored_bytes == stored.numel()
    assert report.mean_squared_error == pytest.approx(np.square(error).mean(), rel=1e-5)
    assert report.max_abs_error == pytest.approx(np.abs(error).max(), rel=1e-5)
    assert report.mean_square == pytest.approx(np.square(exact).mean(), rel=1e-9)


def test_the_largest_error_may_be_negative() -> None:
    meter = ErrorMeter("ads", RowFormat.BF16, 2)
    meter.add(torch.tensor([[1.0, 5.0]]), encode(RowFormat.BF16, torch.tensor([[1.5, 3.0]])))
    assert meter.report().max_abs_error == 2.0


@pytest.mark.parametrize("row_format", RowFormat)
def test_exactly_stored_rows_have_no_error(row_format: RowFormat) -> None:
    # Every format has these: its lowest and highest level, one between, and a row of one number.
    middle = {RowFormat.INT4: 17.0, RowFormat.INT2: 85.0, RowFormat.FP8: 224.0}
    top = 448.0 if row_format is RowFormat.FP8 else 255.0
    rows = torch.tensor([[0.0, top, middle.get(row_format, 17.0)], [2.0, 2.0, 2.0]])
    meter = ErrorMeter("ads", row_format, 3)
    meter.add(rows, encode(row_format, rows))
    report = meter.report()
    assert (report.mean_squared_error, report.max_abs_error) == (0.0, 0.0)
