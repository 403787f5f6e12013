from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from numpy.typing import NDArray
from pyarrow import parquet
from safetensors.numpy import save_file

from sharded_infer.errors import WeightsError
from sharded_infer.importing.id_maps import stored_ids
from sharded_infer.importing.id_maps.id_files import open_id_file
from sharded_infer.importing.id_maps.id_map_source import IdMapSource

Columns = dict[str, NDArray[np.generic]]


def _npz(path: Path, columns: Columns) -> Path:
    file = path.with_suffix(".npz")
    np.savez(file, **columns)
    return file


def _safetensors(path: Path, columns: Columns) -> Path:
    save_file(columns, file := path.with_suffix(".safetensors"))
    return file


def _parquet(path: Path, columns: Columns) -> Path:
    parquet.write_table(
        pa.table({name: pa.array(column) for name, column in columns.items()}),
        file := path.with_suffix(".parquet"),
        row_group_size=777,
    )
    return file


Saver = Callable[[Path, Columns], Path]
KINDS: list[Saver] = [_npz, _safetensors, _parquet]


def entries(source: IdMapSource, table_rows: int) -> dict[int, int]:
    """All ids and rows; fails if an id repeats."""
    found: dict[int, int] = {}
    for ids, rows in source.chunks(table_rows):
        assert ids.dtype == rows.dtype == np.int64
        found |= dict(zip(ids.tolist(), rows.tolist(), strict=True))
    assert len(found) == source.count
    return found


def _columns(count: int = 2000, dtype: str = "int64") -> Columns:
    info, rng = np.iinfo(dtype), np.random.default_rng(3)
    ids = rng.integers(info.min, info.max, 4 * count, dtype=dtype, endpoint=True)
    ids = rng.permutation(np.unique(np.concatenate([ids, np.array([info.min, info.max], dtype)])))
    return {"id": ids[:count], "row": rng.permutation(len(ids[:count]))}


@pytest.mark.parametrize("save", KINDS)
@pytest.mark.parametrize("dtype", ["int64", "uint64", "int32", "uint32", "int16", "uint8"])
def test_ids_of_every_width_are_read_in_chunks(
    save: Saver, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_ids, "CHUNK", 300)
    columns = _columns(dtype=dtype)
    source = open_id_file(save(tmp_path / "ids", columns))
    ids = columns["id"].astype("int64") if dtype != "uint64" else columns["id"].view("int64")
    expected = dict(zip(ids.tolist(), columns["row"].tolist(), strict=True))
    assert entries(source, len(ids)) == expected
    assert entries(source, len(ids)) == expected, "it can be read again"


@pytest.mark.parametrize("save", KINDS)
def test_without_rows_the_position_is_the_row(
    save: Saver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_ids, "CHUNK", 300)
    ids = _columns()["id"]
    source = open_id_file(save(tmp_path / "ids", {"user": ids}), ids="user")
    assert entries(source, len(ids)) == {int(i): row for row, i in enumerate(ids)}


@pytest.mark.parametrize("save", KINDS)
@pytest.mark.parametrize("has_rows", [True, False])
def test_a_column_says_how_often_each_id_is_used(
    save: Saver, has_rows: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_ids, "CHUNK", 300)
    columns = _columns(700) | {"frequency": np.arange(700) * 3 % 500}
    if not has_rows:
        del columns["row"]
    source = open_id_file(save(tmp_path / "ids", columns))
    assert source.frequencies is not None
    rows, counts = (np.concatenate(part) for part in zip(*source.frequencies(), strict=True))
    assert rows.tolist() == columns.get("row", np.arange(700)).tolist()
    assert counts.tolist() == columns["frequency"].tolist()
    assert len(entries(source, 700)) == 700
    wrong = columns | {"frequency": np.zeros(700, np.float32)}
    with pytest.raises(WeightsError, match="'frequency': expected whole numbers"):
        open_id_file(save(tmp_path / "wrong", wrong))
    other = open_id_file(save(tmp_path / "wrong", wrong), frequencies="uses")
    assert other.frequencies is None and other.count == 700


def test_a_npy_file_has_ids_or_ids_and_rows(tmp_path: Path) -> None:
    columns = _columns(500)
    np.save(tmp_path / "ids.npy", columns["id"])
    np.save(tmp_path / "pairs.npy", np.stack([columns["id"], columns["row"]], axis=1))
    by_position = {int(i): row for row, i in enumerate(columns["id"])}
    assert entries(open_id_file(tmp_path / "ids.npy"), 500) == by_position
    pairs = dict(zip(columns["id"].tolist(), columns["row"].tolist(), strict=True))
    assert entries(open_id_file(tmp_path / "pairs.npy"), 500) == pairs


def test_a_row_out_of_the_table_is_refused_with_the_file_and_the_id(tmp_path: Path) -> None:
    file = _npz(tmp_path / "ids", {"id": np.arange(5) + 90, "row": np.array([0, 1, 2, 7, 3])})
    with pytest.raises(
        WeightsError, match=rf"{file}: id 93 \(entry 3\) has row 7, expected one of 5"
    ):
        list(open_id_file(file).chunks(5))


@pytest.mark.parametrize("save", KINDS)
def test_another_dtype_is_refused_with_the_column(save: Saver, tmp_path: Path) -> None:
    file = save(tmp_path / "ids", {"id": np.zeros(3, np.float32), "row": np.arange(3)})
    with pytest.raises(WeightsError, match=f"{file}: 'id': expected whole numbers, got .*float"):
        open_id_file(file)


@pytest.mark.parametrize("save", KINDS)
def test_a_column_that_is_not_there_is_refused_with_those_that_are(
    save: Saver, tmp_path: Path
) -> None:
    file = save(tmp_path / "ids", {"ids": np.arange(3)})
    with pytest.raises(WeightsError, match=f"{file}: no column 'id', only 'ids'; did you mean"):
        open_id_file(file)


@pytest.mark.parametrize("save", [_npz, _safetensors])
@pytest.mark.parametrize("rows", [np.arange(2), np.zeros((3, 2), np.int64), np.int64(3)])
def test_columns_of_other_shapes_are_refused(
    save: Saver, rows: NDArray[np.int64], tmp_path: Path
) -> None:
    file = save(tmp_path / "ids", {"id": np.arange(3), "row": np.asarray(rows)})
    with pytest.raises(WeightsError, match=f"{file}: 'row'.*(expected|shape|no rows)"):
        open_id_file(file)


def test_parquet_with_missing_values_is_refused_with_the_column(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"id": pa.array([1, None, 3])}), tmp_path / "ids.parquet")
    with pytest.raises(WeightsError, match="'id': expected a number in each row, got none in 1"):
        list(open_id_file(tmp_path / "ids.parquet").chunks(3))


def test_other_files_are_refused_by_their_suffix(tmp_path: Path) -> None:
    (tmp_path / "ids.csv").write_text("id,row\n1,2\n")
    with pytest.raises(WeightsError, match=r"ids\.csv: expected a file of ids, \.parquet.*'\.csv'"):
        open_id_file(tmp_path / "ids.csv")
    torch.save({"id": torch.arange(3)}, tmp_path / "ids.pt")
    with pytest.raises(WeightsError, match=r"'\.pt'"):
        open_id_file(tmp_path / "ids.pt")
