"""A table's figures against direct computations in double precision."""

import numpy as np
import pytest
import torch

from kernels.row_format import RowFormat
from kernels.stored_rows import decode
from quant.encoder import encode_rows
from quant.error_meter import ErrorMeter, errors_of
from tests.reference.row_encoding import encode


@pytest.mark.parametrize("row_format", RowFormat)
@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_figures_are_those_of_the_table_however_cut(row_format: RowFormat, chunk: int) -> None:
    rows = torch.randn(20, 7, generator=torch.Generator().manual_seed(0)) * 3 + 1
    meter = ErrorMeter("ads", row_format, 7, "it was asked for")
    for part in rows.split(chunk):
        meter.add(errors_of(encode_rows(row_format, part), zeroed=1))
    report = meter.report()
    exact = rows.double().numpy()
    stored = encode(row_format, rows)
    error = decode(row_format, stored, 7).double().numpy() - exact
    assert (report.name, report.row_format, report.rows, report.dim) == ("ads", row_format, 20, 7)
    assert report.fp32_bytes == 20 * 7 * 4
    assert report.stored_bytes == stored.numel()
    assert report.mean_squared_error == pytest.approx(np.square(error).mean(), rel=1e-5)
    assert report.max_abs_error == pytest.approx(np.abs(error).max(), rel=1e-5)
    assert report.mean_square == pytest.approx(np.square(exact).mean(), rel=1e-6)
    assert report.zeroed == -(-20 // chunk)
    assert report.reason == "it was asked for"
    minmax = report.minmax_mean_squared_error
    if row_format in {RowFormat.INT4, RowFormat.INT2}:
        plain = decode(row_format, encode(row_format, rows, clip=False), 7).double().numpy()
        assert minmax == pytest.approx(np.square(plain - exact).mean(), rel=1e-5)
        assert minmax > report.mean_squared_error
    else:
        assert minmax is None


@pytest.mark.parametrize("row_format", RowFormat)
def test_the_histogram_counts_each_row_by_its_relative_error(row_format: RowFormat) -> None:
    rows = torch.randn(300, 32, generator=torch.Generator().manual_seed(1))
    meter = ErrorMeter("ads", row_format, 32)
    meter.add(errors_of(encode_rows(row_format, rows)))
    histogram = meter.report().row_errors
    assert len(histogram.edges) == len(histogram.counts) + 1
    assert sum(histogram.counts) == 300
    error = decode(row_format, encode(row_format, rows), 32) - rows
    relative = (error.square().sum(1) / rows.square().sum(1)).sqrt().double().numpy()
    edges = np.array(histogram.edges)
    inside = relative.clip(edges[0], np.nextafter(edges[-1], 0))
    expected, _ = np.histogram(inside, bins=edges)
    # A row exactly at an edge may fall on either side in single precision.
    assert np.abs(expected - np.array(histogram.counts)).sum() <= 2


def test_rows_of_zeros_count_as_exact() -> None:
    meter = ErrorMeter("ads", RowFormat.INT8, 4)
    meter.add(errors_of(encode_rows(RowFormat.INT8, torch.zeros(5, 4))))
    report = meter.report()
    assert report.row_errors.counts[0] == 5
    assert (report.mean_squared_error, report.max_abs_error, report.mean_square) == (0, 0, 0)


@pytest.mark.parametrize("row_format", [RowFormat.FP32, RowFormat.BF16, RowFormat.FP8])
def test_figures_of_every_finite_row_are_finite(row_format: RowFormat) -> None:
    rows = torch.full((5, 4), torch.finfo(torch.float32).max) * torch.tensor([1, 0.5, -0.3, 0])
    meter = ErrorMeter("ads", row_format, 4)
    meter.add(errors_of(encode_rows(row_format, rows / 4)))
    report = meter.report()
    assert report.mean_square == pytest.approx((rows.double() / 4).square().mean().item(), rel=1e-6)
    assert np.isfinite([report.mean_squared_error, report.max_abs_error]).all()
    assert sum(report.row_errors.counts) == 5
