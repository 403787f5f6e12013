from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from numpy.typing import NDArray
from pyarrow import parquet
from safetensors.numpy import save_file

from kernels.ids.id_hash import StringHash, hash_strings, joined_strings
from sharded_infer.errors import WeightsError
from sharded_infer.importing.id_maps import stored_ids, vocabulary
from sharded_infer.importing.id_maps.id_files import open_id_file
from sharded_infer.importing.id_maps.id_map_source import Chunk, IdMapSource
from sharded_infer.importing.id_maps.vocabulary import open_vocabulary

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


@pytest.mark.parametrize("save", KINDS)
def test_a_missing_column_is_refused_with_those_that_are_there(save: Saver, tmp_path: Path) -> None:
    file = save(tmp_path / "ids", {"ids": np.arange(3)})
    with pytest.raises(WeightsError, match=f"{file}: no column 'id', only 'ids'; did you mean"):
        open_id_file(file)
    assert entries(open_id_file(file, ids="ids"), 3) == {0: 0, 1: 1, 2: 2}


def test_other_files_are_refused_by_their_suffix(tmp_path: Path) -> None:
    (tmp_path / "ids.csv").write_text("id,row\n1,2\n")
    with pytest.raises(WeightsError, match=r"ids\.csv: expected a file of ids, \.parquet.*'\.csv'"):
        open_id_file(tmp_path / "ids.csv")
    torch.save({"id": torch.arange(3)}, tmp_path / "ids.pt")
    with pytest.raises(WeightsError, match=r"'\.pt'"):
        open_id_file(tmp_path / "ids.pt")


def _source(*chunks: tuple[list[int], list[int]], count: int, rows: int | None) -> IdMapSource:
    pairs: list[Chunk] = [(np.array(i, np.int64), np.array(r, np.int64)) for i, r in chunks]
    return IdMapSource("ids.npz", count, lambda: iter(pairs), table_rows=rows)


def test_chunks_are_read_as_often_as_they_are_needed() -> None:
    source = _source(([7, -1], [0, 3]), ([2**62], [1]), count=3, rows=4)
    for _ in range(2):
        ids, rows = zip(*source.chunks(4), strict=True)
        assert np.concatenate(ids).tolist() == [7, -1, 2**62]
        assert np.concatenate(rows).tolist() == [0, 3, 1]


@pytest.mark.parametrize(
    ("rows", "count", "table_rows", "words"),
    [
        *(([0, row], 2, None, rf"id 8 \(entry 1\) has row {row}") for row in (-1, 4, 2**62)),
        ([0, 1], 2, 5, "table of 5 rows, expected 4"),
        *(([0, 1], count, 4, f"expected {count} ids?, got 2") for count in (1, 3)),
    ],
)
def test_a_map_that_does_not_fit_its_table_is_refused(
    rows: list[int], count: int, table_rows: int | None, words: str
) -> None:
    source = _source(([7], rows[:1]), ([8], rows[1:]), count=count, rows=table_rows)
    with pytest.raises(WeightsError, match=rf"ids\.npz.*{words}"):
        list(source.chunks(4))


STRINGS = ["café", "", "a b", " a", "0x7f", "'", "x" * 65536, "\ttab", "\r", "zwei\rdrei"]


@pytest.mark.parametrize("name", list(StringHash))
@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False])
def test_the_line_is_the_row_of_its_string(
    name: str, seed: int, end: str, last: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vocabulary, "CHUNK", 3)
    strings = [s.encode() for s in STRINGS if end == "\r\n" or s != "\r"]
    text = end.encode().join(strings) + (end.encode() if last else b"")
    (tmp_path / "words.txt").write_bytes(text)
    source = open_vocabulary(tmp_path / "words.txt", name, seed)
    assert (source.strings, source.seed, source.count) == (name, seed, len(strings))
    for _ in range(2):
        ids, rows = (np.concatenate(part) for part in zip(*source.chunks(20), strict=True))
        assert rows.tolist() == list(range(len(strings)))
        hashes = hash_strings(StringHash(name), *joined_strings(strings), seed)
        assert ids.tolist() == hashes.tolist()


def test_open_id_file_opens_text_as_a_vocabulary(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("a\nb\n")
    source = open_id_file(tmp_path / "words.txt", strings="xxh3_64", seed=3)
    assert (source.strings, source.seed, source.count) == ("xxh3_64", 3, 2)
    with pytest.raises(WeightsError, match="strings: expected xxh3_64 or murmur3.*got None"):
        open_id_file(tmp_path / "words.txt")


def test_a_string_that_comes_twice_is_refused_with_its_lines(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("a\nb\nc\nb\n")
    with pytest.raises(WeightsError, match=r"words.txt: .* string once, got 'b' in lines 1 and 3"):
        open_vocabulary(tmp_path / "words.txt", "xxh3_64")


def test_strings_with_one_hash_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # No two short strings with one hash are at hand: only the first letter is hashed.
    monkeypatch.setattr(
        vocabulary, "joined_strings", lambda lines: joined_strings([line[:1] for line in lines])
    )
    (tmp_path / "words.txt").write_text("apple\npear\nalmond\n")
    with pytest.raises(WeightsError, match=r"'apple' and 'almond', lines 0 and 2 .*another seed"):
        open_vocabulary(tmp_path / "words.txt", "murmur3_x64_128", 9)
