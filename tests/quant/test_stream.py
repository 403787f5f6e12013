import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels.errors import InputError
from kernels.row_format import RowFormat
from kernels.stored_rows import decode
from quant import stream
from quant.sources.table_weight import find_weight
from quant.sources.weight_source import TensorSource, WeightSource
from quant.stream import EncodedChunk, RowRange, encode_ranges
from tests.reference.row_encoding import encode

ROWS, DIM = 23, 5


@pytest.fixture
def weight() -> Tensor:
    return torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(0))


def rows_of(
    source: WeightSource,
    row_format: RowFormat,
    first_row: int = 0,
    last_row: int = ROWS,
    *,
    table: str = "w",
    zero_nonfinite: bool = False,
) -> RowRange:
    found = find_weight(source, table, None, rows=ROWS, dim=DIM)
    return RowRange(table, found, row_format, first_row, last_row, zero_nonfinite=zero_nonfinite)


def encoded(ranges: list[RowRange], workers: int | None = None) -> list[EncodedChunk]:
    """All chunks, copied because their memory is reused."""
    return [replace(chunk, stored=chunk.stored.clone()) for chunk in encode_ranges(ranges, workers)]


def stored(chunks: list[EncodedChunk]) -> Tensor:
    return torch.cat([chunk.stored for chunk in chunks])


@pytest.mark.parametrize("row_format", RowFormat)
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize(
    ("chunk_elements", "chunks"), [(1, ROWS), (DIM, ROWS), (4 * DIM + 3, 6), (ROWS * DIM, 1)]
)
def test_chunks_make_what_one_go_makes(
    weight: Tensor,
    row_format: RowFormat,
    workers: int,
    chunk_elements: int,
    chunks: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream, "_CHUNK_ELEMENTS", chunk_elements)
    done = encoded([rows_of(TensorSource({"w": weight}), row_format)], workers)
    assert torch.equal(stored(done), encode(row_format, weight))
    assert (len(done), sum(chunk.fp32_bytes for chunk in done)) == (chunks, ROWS * DIM * 4)


def test_ranges_come_alone_in_their_order(weight: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "_CHUNK_ELEMENTS", 2 * DIM)
    source = TensorSource({"a": weight, "b": -weight})
    ranges = [
        rows_of(source, RowFormat.INT8, 4, 11, table="b"),
        rows_of(source, RowFormat.INT4, 0, 3, table="a"),
    ]
    chunks = encoded(ranges, 3)
    assert [chunk.table for chunk in chunks] == ["b"] * 4 + ["a"] * 2
    assert torch.equal(stored(chunks[:4]), encode(RowFormat.INT8, -weight[4:11]))
    assert torch.equal(stored(chunks[4:]), encode(RowFormat.INT4, weight[:3]))


@pytest.mark.parametrize("row_format", RowFormat)
def test_a_row_that_cannot_be_stored_is_named_with_its_table(
    weight: Tensor, row_format: RowFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_CHUNK_ELEMENTS", 4 * DIM)
    weight[18, 2] = float("nan")
    words = f"table 'w', row 18: holds NaN.*, so it cannot be stored as {row_format}"
    with pytest.raises(InputError, match=words):
        encoded([rows_of(TensorSource({"w": weight}), row_format, 1)], 2)


@pytest.mark.parametrize("row_format", RowFormat)
def test_what_is_not_finite_is_zero_when_told_so_and_counted(
    weight: Tensor, row_format: RowFormat
) -> None:
    broken = weight.clone()
    broken[3, 1], broken[20, 0], broken[20, 4] = torch.nan, torch.inf, -torch.inf
    source = TensorSource({"w": broken})
    (chunk,) = encode_ranges([rows_of(source, row_format, zero_nonfinite=True)])
    expected = torch.where(torch.isfinite(broken), broken, 0.0)
    assert chunk.errors.zeroed == 3
    assert torch.equal(chunk.stored, encode(row_format, expected))


def test_rows_beyond_the_format_are_refused_even_where_others_are_zeroed(weight: Tensor) -> None:
    weight[7, 0] = -1e6
    ranges = [rows_of(TensorSource({"w": weight}), RowFormat.INT8, zero_nonfinite=True)]
    with pytest.raises(InputError, match="table 'w', row 7: .*fp16's range"):
        encoded(ranges)


@pytest.mark.parametrize("row_format", [RowFormat.INT8, RowFormat.INT4, RowFormat.INT2])
@pytest.mark.parametrize("padding", [0, 16])
def test_rows_that_are_quantized_already_are_taken_over_to_the_bit(
    weight: Tensor, row_format: RowFormat, padding: int
) -> None:
    rows = encode(row_format, weight)
    padded = torch.nn.functional.pad(rows, (0, -rows.shape[1] % padding if padding else 0), value=7)
    source = TensorSource({"w": padded})
    found = find_weight(source, "w", None, rows=ROWS, dim=DIM, row_format=row_format)
    (chunk,) = encode_ranges([RowRange("w", found, row_format, 0, ROWS)])
    assert torch.equal(chunk.stored, rows)
    assert chunk.errors.squared_error == 0.0
    square = float(decode(row_format, rows, DIM).square().sum())
    assert chunk.errors.square == pytest.approx(square)


def test_no_more_chunks_are_read_ahead_than_threads_and_two(
    weight: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_CHUNK_ELEMENTS", DIM)
    begun: list[int] = []

    def ranges() -> Iterator[RowRange]:
        for row in range(ROWS):
            begun.append(row)
            yield rows_of(TensorSource({"w": weight}), RowFormat.INT8, row, row + 1)

    chunks = encode_ranges(ranges(), 2)
    next(chunks)
    assert len(begun) <= 2 + 2 + 1
    chunks.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("quantize")]


def test_torchs_own_threads_are_as_they_were(weight: Tensor) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for _ in encode_ranges([rows_of(TensorSource({"w": weight}), RowFormat.INT8)]):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
