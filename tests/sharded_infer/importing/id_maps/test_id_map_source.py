import numpy as np
import pytest

from sharded_infer.errors import WeightsError
from sharded_infer.importing.id_maps.id_map_source import Chunk, IdMapSource


def _source(*chunks: tuple[list[int], list[int]], count: int, rows: int | None) -> IdMapSource:
    pairs: list[Chunk] = [(np.array(i, np.int64), np.array(r, np.int64)) for i, r in chunks]
    return IdMapSource("ids.npz", count, lambda: iter(pairs), table_rows=rows)


def test_chunks_are_read_as_often_as_they_are_needed() -> None:
    source = _source(([7, -1], [0, 3]), ([2**62], [1]), count=3, rows=4)
    for _ in range(2):
        ids, rows = zip(*source.chunks(4), strict=True)
        assert np.concatenate(ids).tolist() == [7, -1, 2**62]
        assert np.concatenate(rows).tolist() == [0, 3, 1]


@pytest.mark.parametrize("row", [-1, 4, 2**62])
def test_a_row_out_of_the_table_is_refused_with_its_id(row: int) -> None:
    source = _source(([7, 8], [0, 1]), ([9, 10], [2, row]), count=4, rows=None)
    with pytest.raises(WeightsError, match=rf"ids\.npz: id 10 \(entry 3\) has row {row}"):
        list(source.chunks(4))


def test_a_table_of_other_rows_is_refused() -> None:
    with pytest.raises(WeightsError, match="table of 5 rows, expected 4"):
        list(_source(([7], [0]), count=1, rows=5).chunks(4))


@pytest.mark.parametrize("count", [1, 3])
def test_another_number_of_ids_is_refused(count: int) -> None:
    with pytest.raises(WeightsError, match=f"expected {count} ids?, got 2"):
        list(_source(([7, 8], [0, 1]), count=count, rows=4).chunks(4))
