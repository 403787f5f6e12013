"""Files of ids and of changed rows that are cut, altered, or something else."""

import json
import os
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from safetensors.numpy import save_file

from sharded_infer.errors import WeightsError
from sharded_infer.importing.changes.change_files import open_changes
from sharded_infer.importing.changes.easyrec_deltas import open_easyrec_deltas
from sharded_infer.importing.changes.hps_messages import open_hps_messages
from sharded_infer.importing.id_maps.id_files import open_id_file
from sharded_infer.importing.id_maps.vocabulary import LONGEST, open_vocabulary
from tests.sharded_infer.importing.changes.test_easyrec_deltas import ITEM, USER, dump
from tests.sharded_infer.importing.changes.test_hps_messages import by_kcat, message

ROWS = np.random.default_rng(1).standard_normal((100, 4)).astype(np.float32)
IDS = np.arange(100) * 7919
MAP: dict[str, Any] = {"id": IDS, "row": np.arange(100)}
CHANGES: dict[str, Any] = {"item.ids": IDS, "item.values": ROWS}
COLUMNS: dict[str, Any] = {
    "table": ["item", "user"] * 50,
    "id": IDS,
    "values": list(ROWS),
    "removed": [False] * 99 + [True],
}
Write = Callable[[Path], object]
Read = Callable[[Path], object]


def read_ids(path: Path) -> int:
    return sum(len(ids) for ids, _ in open_id_file(path).chunks(100))


def write_hps(path: Path) -> None:
    keys = IDS.tolist()
    path.write_bytes(by_kcat(message(keys[:60], ROWS[:60]), message(keys[60:], ROWS[60:])))


KINDS: dict[str, tuple[str, Write, Read]] = {
    "ids, npz": (".npz", lambda path: np.savez(path, **MAP), read_ids),
    "ids, npy": (".npy", lambda path: np.save(path, np.stack([*MAP.values()], 1)), read_ids),
    "ids, safetensors": (".safetensors", lambda path: save_file(MAP, path), read_ids),
    "ids, parquet": (".parquet", lambda p: parquet.write_table(pa.table(MAP), p), read_ids),
    "rows, npz": (".npz", lambda path: np.savez(path, **CHANGES), open_changes),
    "rows, safetensors": (".safetensors", lambda path: save_file(CHANGES, path), open_changes),
    "rows, parquet": (
        ".parquet",
        lambda path: parquet.write_table(pa.table(COLUMNS), path, row_group_size=30),
        open_changes,
    ),
    "rows of EasyRec": (
        ".parquet",
        lambda path: dump(path, 3, {USER: (IDS.tolist(), ROWS), ITEM: (IDS.tolist(), ROWS)}),
        open_easyrec_deltas,
    ),
    "rows of HPS": (".hps", write_hps, lambda path: open_hps_messages(path, "item")),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Read]:
    suffix, write, read = KINDS[request.param]
    write(path := tmp_path / f"file{suffix}")
    return path, read


def test_a_cut_file_is_refused_by_name(kind: tuple[Path, Read]) -> None:
    path, read = kind
    data = path.read_bytes()
    assert read(path)
    # Of HPS' messages there may be none.
    for kept in (0.1 if path.suffix == ".hps" else 0.0, 0.1, 0.5, 0.9, 0.999):
        path.write_bytes(data[: int(kept * len(data))])
        with pytest.raises(WeightsError, match=str(path)):
            read(path)


def test_altered_bytes_are_refused_or_read_without_harm(kind: tuple[Path, Read]) -> None:
    path, read = kind
    data, rng = path.read_bytes(), np.random.default_rng(8)
    for _ in range(300):
        altered = bytearray(data)
        for place in rng.integers(0, len(data), 3):
            altered[place] = rng.integers(0, 256)
        path.write_bytes(altered)
        with suppress(WeightsError):
            read(path)


def test_what_is_no_file_is_refused_without_waiting(kind: tuple[Path, Read]) -> None:
    path, read = kind
    path.unlink()
    with pytest.raises(WeightsError, match=f"{path}.*cannot be read: No such file"):
        read(path)
    os.mkfifo(path)
    with pytest.raises(WeightsError, match=f"{path}.*FIFO"):
        read(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(WeightsError, match=f"{path}.*folder" if read is read_ids else str(path)):
        read(path)


@pytest.mark.parametrize(("name", "read"), [("id", open_id_file), ("item.ids", open_changes)])
def test_an_array_of_objects_is_refused_without_unpickling(
    name: str, read: Read, tmp_path: Path
) -> None:
    arrays: dict[str, Any] = {name: np.array([{"a": 1}], dtype=object), "item.values": ROWS[:1]}
    np.savez(path := tmp_path / "file.npz", **arrays)
    with pytest.raises(WeightsError, match=rf"'{name}\.npy': expected numbers, got NumPy's dtype"):
        read(path)


@pytest.mark.parametrize(("name", "read"), [("id", open_id_file), ("item.ids", open_changes)])
def test_two_arrays_of_one_name_are_refused(name: str, read: Read, tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", IDS)
    with zipfile.ZipFile(path := tmp_path / "file.npz", "w") as archive:
        archive.write(tmp_path / "ids.npy", f"{name}.npy")
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.write(tmp_path / "ids.npy", f"{name}.npy")
    with pytest.raises(WeightsError, match=f"holds two arrays '{name}'"):
        read(path)


# Ids that contradict themselves, or are none.


def test_a_npz_file_that_promises_more_than_it_holds_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ids.npz"
    np.savez(path, id=np.arange(100))
    # As long in digits, so that nothing else moves.
    path.write_bytes(path.read_bytes().replace(b"(100,)", b"(999,)"))
    with pytest.raises(WeightsError, match=r"is \[999\] int64, expected 7992 bytes, got 800"):
        open_id_file(path)


def test_a_compressed_npz_file_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "ids.npz"
    np.savez_compressed(path, id=np.zeros(10**7, np.int64))
    assert path.stat().st_size < 10**6
    with pytest.raises(WeightsError, match=r"'id\.npy': is compressed; save it with numpy\.savez"):
        open_id_file(path)


@pytest.mark.parametrize("shape", ["(2**62,)", "(4611686018427387904,)", "(-1,)"])
def test_a_npy_file_of_a_shape_that_it_does_not_hold_is_refused(tmp_path: Path, shape: str) -> None:
    path = tmp_path / "ids.npy"
    header = f"{{'descr': '<i8', 'fortran_order': False, 'shape': {shape}}}"
    text = header.encode().ljust(117) + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + bytes(800))
    with pytest.raises(WeightsError, match=r"ids\.npy"):
        open_id_file(path)


@pytest.mark.parametrize(
    "ranges", [((0, 80), (72, 152)), ((0, 80), (88, 168)), ((80, 0), (80, 160))]
)
def test_ranges_of_a_safetensors_file_that_overlap_or_leave_it_are_refused(
    tmp_path: Path, ranges: tuple[tuple[int, int], ...]
) -> None:
    path = tmp_path / "ids.safetensors"
    entries = {
        name: {"dtype": "I64", "shape": [10], "data_offsets": list(offsets)}
        for name, offsets in zip(("id", "row"), ranges, strict=True)
    }
    header = json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(160))
    with pytest.raises(WeightsError, match="ids.safetensors: not a readable"):
        open_id_file(path)


NESTED = pa.array([[1], [2, 3]], pa.list_(pa.int64()))


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"id": NESTED}, "'id': expected whole numbers, got list"),
        ({"id": [1, 2], "row": [None, 1]}, "'row': expected a number in each row, got none in 1"),
        (
            {"id": [1, 2], "row": np.array([0, 2**64 - 1], np.uint64)},
            r"id 2 \(entry 1\) has row -1, expected one of 100 rows",
        ),
        ({f"{'x' * 10**5}": [1]}, "no column 'id', only 'x{100}'$"),
        ({"id": np.arange(101)}, r"id 100 \(entry 100\) has row 100, expected one of 100 rows"),
    ],
)
def test_columns_of_other_kinds_and_rows_of_no_table_are_refused(
    tmp_path: Path, columns: dict[str, object], words: str
) -> None:
    path = tmp_path / "ids.parquet"
    parquet.write_table(pa.table(columns), path)
    with pytest.raises(WeightsError, match=words):
        read_ids(path)


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "ids.parquet"
    parquet.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["id", "id"]), path)
    with pytest.raises(WeightsError, match="two columns 'id'"):
        read_ids(path)


def test_a_large_group_of_rows_is_read_in_bounded_memory(tmp_path: Path) -> None:
    path, count = tmp_path / "ids.parquet", 2**22
    ids = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, count)
    parquet.write_table(pa.table({"id": ids}), path, row_group_size=count)
    whole, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    try:
        assert sum(len(ids) for ids, _ in open_id_file(path).chunks(count)) == count
    finally:
        pa.set_memory_pool(whole)
    assert 0 < pool.max_memory() < ids.nbytes / 3


# Vocabularies.


def test_an_empty_vocabulary_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "words.txt"
    file.touch()
    with pytest.raises(WeightsError, match=r"words\.txt: expected a string a line, got none"):
        open_vocabulary(file, "xxh3_64")


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_a_line_without_end_is_refused_before_it_is_read(tmp_path: Path, end: bytes) -> None:
    file = tmp_path / "words.txt"
    file.write_bytes(b"a\n" + b"x" * (LONGEST + 1) + end)
    with pytest.raises(WeightsError, match=rf"line 1 \(from 0\): expected at most {LONGEST} bytes"):
        open_vocabulary(file, "xxh3_64")
    with file.open("wb") as written:
        written.truncate(2**40)  # no disk space is used
    tracemalloc.start()
    with pytest.raises(WeightsError, match=r"line 0 \(from 0\): expected at most"):
        open_vocabulary(file, "xxh3_64")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_that_the_hash_does_not_take_is_refused(tmp_path: Path, seed: int) -> None:
    file = tmp_path / "words.txt"
    file.write_text("a\n")
    with pytest.raises(WeightsError, match=r"words\.txt: murmur3.*unsigned number of 32 bits"):
        open_vocabulary(file, "murmur3_x64_128", seed)


def test_another_hash_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "words.txt"
    file.write_text("a\n")
    with pytest.raises(WeightsError, match="expected xxh3_64 or murmur3_x64_128.*got 'md5'"):
        open_vocabulary(file, "md5")


def test_bytes_that_are_no_text_are_strings(tmp_path: Path) -> None:
    file = tmp_path / "words.txt"
    file.write_bytes(bytes(b for b in range(256) if b not in b"\r\n") + b"\n\x00\n\xff\xfe")
    assert open_vocabulary(file, "xxh3_64").count == 3


def test_long_strings_are_read_in_bounded_memory(tmp_path: Path) -> None:
    file = tmp_path / "words.txt"
    with file.open("wb") as written:
        for number in range(2000):
            written.write(str(number).encode() + b"x" * (LONGEST - 8) + b"\n")
    tracemalloc.start()
    source = open_vocabulary(file, "xxh3_64")
    rows = [rows for _, rows in source.chunks(2000)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert source.count == 2000 and [*rows[0], *rows[1]][-1] == sum(map(len, rows[:2])) - 1
    assert peak < 50 * 2**20 < file.stat().st_size
