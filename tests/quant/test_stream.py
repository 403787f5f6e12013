"""Tables quantized a chunk at a time."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from kernels.errors import InputError
from kernels.row_format import RowFormat
from quant import stream
from quant.report import ErrorMeter, TableReport
from quant.rowwise import encode
from quant.source import TensorSource, WeightSource, open_weights

ROWS, DIM = 23, 5


@pytest.fixture
def weight() -> torch.Tensor:
    return torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(0))


def quantized(
    source: WeightSource, row_format: RowFormat, first_row: int = 0, last_row: int = ROWS
) -> tuple[torch.Tensor, TableReport, list[int]]:
    meter = ErrorMeter("ads", row_format, DIM)
    done: list[int] = []
    chunks = stream.quantize_rows(
        source,
        "w",
        row_format,
        meter,
        table="ads",
        first_row=first_row,
        last_row=last_row,
        on_bytes=done.append,
    )
    return torch.cat(list(chunks)), meter.report(), done


@pytest.mark.parametrize("row_format", RowFormat)
@pytest.mark.parametrize(
    ("chunk_elements", "chunks"), [(1, ROWS), (DIM, ROWS), (4 * DIM + 3, 6), (ROWS * DIM, 1)]
)
def test_chunks_make_what_one_go_makes(
    weight: torch.Tensor,
    row_format: RowFormat,
    chunk_elements: int,
    chunks: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream, "CHUNK_ELEMENTS", chunk_elements)
    stored, report, done = quantized(TensorSource({"w": weight}), row_format)
    assert torch.equal(stored, encode(row_format, weight))
    assert (len(done), sum(done)) == (chunks, ROWS * DIM * 4)
    one_go = ErrorMeter("ads", row_format, DIM)
    one_go.add(weight, stored)
    assert report.max_abs_error == one_go.report().max_abs_error
    assert report.mean_squared_error == pytest.approx(one_go.report().mean_squared_error)


def test_a_range_is_only_that_range(weight: torch.Tensor) -> None:
    stored, report, _ = quantized(TensorSource({"w": weight}), RowFormat.INT8, 4, 11)
    assert torch.equal(stored, encode(RowFormat.INT8, weight[4:11]))
    assert report.rows == 7


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_floats_are_widened_first(
    weight: torch.Tensor, dtype: torch.dtype, tmp_path: Path
) -> None:
    stored_as = weight.to(dtype)
    save_file({"w": stored_as}, tmp_path / "w.safetensors")
    stored, _, _ = quantized(open_weights(tmp_path / "w.safetensors"), RowFormat.INT8)
    assert torch.equal(stored, encode(RowFormat.INT8, stored_as.float()))


@pytest.mark.parametrize("row_format", RowFormat)
def test_a_row_that_cannot_be_stored_is_named_with_its_table(
    weight: torch.Tensor, row_format: RowFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "CHUNK_ELEMENTS", 4 * DIM)
    weight[18, 2] = float("nan")
    words = f"table 'ads', row 18: holds NaN.*, so it cannot be stored as {row_format}"
    with pytest.raises(InputError, match=words):
        quantized(TensorSource({"w": weight}), row_format, first_row=1)
