"""Files of ids and of changed rows that are cut, altered, contradictory or something else."""

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
import torch
from pyarrow import parquet
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_tensors

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
def test_arrays_of_objects_or_one_name_are_refused(name: str, read: Read, tmp_path: Path) -> None:
    arrays: dict[str, Any] = {name: np.array([{"a": 1}], dtype=object), "item.values": ROWS[:1]}
    np.savez(path := tmp_path / "file.npz", **arrays)
    with pytest.raises(WeightsError, match=rf"'{name}\.npy': expected numbers, got NumPy's dtype"):
        read(path)
    np.save(tmp_path / "ids.npy", IDS)
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(tmp_path / "ids.npy", f"{name}.npy")
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.write(tmp_path / "ids.npy", f"{name}.npy")
    with pytest.raises(WeightsError, match=f"holds two arrays '{name}'"):
        read(path)


def promising_more(path: Path) -> None:
    np.savez(path, id=np.arange(100))
    # As long in digits, so that nothing else moves.
    path.write_bytes(path.read_bytes().replace(b"(100,)", b"(999,)"))


def of_shape(shape: str) -> Write:
    header = f"{{'descr': '<i8', 'fortran_order': False, 'shape': {shape}}}"
    text = header.encode().ljust(117) + b"\n"
    data = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + bytes(800)
    return lambda path: path.write_bytes(data)


def of_ranges(*ranges: tuple[int, int]) -> Write:
    entries = {
        name: {"dtype": "I64", "shape": [10], "data_offsets": list(offsets)}
        for name, offsets in zip(("id", "row"), ranges, strict=True)
    }
    header = json.dumps(entries).encode()
    data = struct.pack("<Q", len(header)) + header + bytes(160)
    return lambda path: path.write_bytes(data)


def of_columns(**columns: object) -> Write:
    return lambda path: parquet.write_table(pa.table(columns), path)


def twice(path: Path) -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["id", "id"])
    parquet.write_table(table, path)


@pytest.mark.parametrize(
    ("suffix", "write", "words"),
    [
        ("npz", promising_more, r"is \[999\] int64, expected 7992 bytes, got 800"),
        (
            "npz",
            lambda path: np.savez_compressed(path, id=np.zeros(10**7, np.int64)),
            r"'id\.npy': is compressed; save it with numpy\.savez",
        ),
        *(
            ("npy", of_shape(shape), r"ids\.npy")
            for shape in ("(2**62,)", "(4611686018427387904,)", "(-1,)")
        ),
        ("safetensors", of_ranges((0, 80), (72, 152)), "ids.safetensors: not a readable"),
        ("safetensors", of_ranges((0, 80), (88, 168)), "ids.safetensors: not a readable"),
        ("safetensors", of_ranges((80, 0), (80, 160)), "ids.safetensors: not a readable"),
        (
            "parquet",
            of_columns(id=pa.array([[1], [2, 3]], pa.list_(pa.int64()))),
            "'id': expected whole numbers, got list",
        ),
        (
            "parquet",
            of_columns(id=[1, 2], row=[None, 1]),
            "'row': expected a number in each row, got none in 1",
        ),
        (
            "parquet",
            of_columns(id=[1, 2], row=np.array([0, 2**64 - 1], np.uint64)),
            r"id 2 \(entry 1\) has row -1, expected one of 100 rows",
        ),
        ("parquet", of_columns(**{"x" * 10**5: [1]}), "no column 'id', only 'x{100}'$"),
        ("parquet", of_columns(id=np.arange(101)), r"id 100 \(entry 100\) has row 100, expected"),
        ("parquet", twice, "two columns 'id'"),
    ],
)
def test_odd_id_files_are_refused(suffix: str, write: Write, words: str, tmp_path: Path) -> None:
    write(path := tmp_path / f"ids.{suffix}")
    with pytest.raises(WeightsError, match=words):
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


@pytest.mark.parametrize(
    ("content", "arguments", "words"),
    [
        (b"", ("xxh3_64",), r"words\.txt: expected a string a line, got none"),
        *(
            (
                b"a\n" + b"x" * (LONGEST + 1) + end,
                ("xxh3_64",),
                rf"line 1 \(from 0\): expected at most {LONGEST} bytes",
            )
            for end in (b"", b"\n", b"\r\n")
        ),
        (b"a\n", ("murmur3_x64_128", -1), "words.txt: murmur3.*unsigned number of 32 bits"),
        (b"a\n", ("murmur3_x64_128", 2**32), "words.txt: murmur3.*unsigned number of 32 bits"),
        (b"a\n", ("md5",), "expected xxh3_64 or murmur3_x64_128.*got 'md5'"),
    ],
)
def test_a_vocabulary_that_is_none_and_a_hash_that_is_none_are_refused(
    content: bytes, arguments: tuple[Any, ...], words: str, tmp_path: Path
) -> None:
    file = tmp_path / "words.txt"
    file.write_bytes(content)
    with pytest.raises(WeightsError, match=words):
        open_vocabulary(file, *arguments)


def test_a_line_without_end_is_refused_before_it_is_read(tmp_path: Path) -> None:
    file = tmp_path / "words.txt"
    file.touch()
    os.truncate(file, 2**40)  # no disk space is used
    tracemalloc.start()
    with pytest.raises(WeightsError, match=r"line 0 \(from 0\): expected at most"):
        open_vocabulary(file, "xxh3_64")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


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


# Changed rows.


ONE, TWO = torch.ones(1, 4), torch.tensor([1, 2])
ID = TWO[:1]


def of_tensors(**tensors: torch.Tensor) -> Write:
    copies = {f"item.{name}": tensor.clone() for name, tensor in tensors.items()}
    return lambda path: save_tensors(copies, path)


def of_changes(**changed: Any) -> Write:
    """Columns of two rows; None is a column that is not there."""
    whole = {"table": ["item", "item"], "id": [1, 2], "values": [[1.0, 2.0], [3.0, 4.0]]}
    columns = {name: column for name, column in (whole | changed).items() if column is not None}
    return lambda path: parquet.write_table(pa.table(columns), path)


def equal_as_64_bits(path: Path) -> None:
    ids = np.array([2**64 - 1, 2**64 - 1], np.uint64)
    np.savez(path, **{"item.ids": ids, "item.values": ROWS[:2]})  # type: ignore[arg-type]


BYTES = pa.array([[1, 2], [3, 4]], pa.list_(pa.uint8()))
# More rows than are looked at at once.
FAR_APART = {
    "table": ["item"] * 140_000,
    "id": np.arange(140_000),
    "values": [[1.0, 2.0]] * 70_000 + [[1.0]] * 70_000,
}
ODD_TENSORS: list[tuple[Write, str]] = [
    (
        lambda path: save_tensors({"item": TWO}, path),
        "'item': expected <table>.ids, <table>.values",
    ),
    (of_tensors(ids=TWO), "table 'item': expected ids with one kind of rows, got ids"),
    (of_tensors(values=ONE), "table 'item': expected ids with one kind of rows, got values"),
    (of_tensors(ids=ID, values=ONE, int8=ONE.byte()), "one kind of rows, got ids, int8, values"),
    (
        of_tensors(ids=TWO, values=ONE),
        r"'item.values': expected 2 rows, one for each id, .*, got \[1, 4\] torch.float32",
    ),
    (of_tensors(ids=TWO, values=torch.ones(2, 0)), r"got torch.float32 \[2, 0\]"),
    (of_tensors(ids=ID, int8=ONE), r"of torch.uint8, got \[1, 4\] torch.float32"),
    (of_tensors(ids=ONE[0, :1], values=ONE), "'item.ids': expected whole numbers"),
    (of_tensors(ids=torch.ones(1, 2).long(), values=ONE), "expected one number an id"),
    (
        of_tensors(ids=torch.tensor([5, 5]), values=torch.ones(2, 4)),
        "table 'item': ids: id 5 comes twice",
    ),
    (of_tensors(ids=ID, values=ONE, removed=TWO), "table 'item': id 1 is changed and removed"),
    (of_tensors(removed=torch.tensor([2, 2])), "table 'item': removed: id 2 comes twice"),
]
ODD_COLUMNS: list[tuple[Write, str]] = [
    (of_changes(id=None), "no column 'id', only 'table', 'values'"),
    (of_changes(table=None), "expected a column 'table', or a table for all rows; got neither"),
    (of_changes(id=[1.0, 2.0]), "'id': expected whole numbers, got double"),
    (of_changes(id=[1, None]), "'id': expected a value in each row, got none in 1 of 2"),
    (of_changes(values=[1.0, 2.0]), "'values': expected a list of numbers in each row, got double"),
    (of_changes(values=[[1.0, 2.0], None]), "expected numbers in each row, got none in some"),
    (of_changes(values=[[1.0, 2.0], [1.0]]), "as many numbers in each row of a table, got 1 and 2"),
    (
        of_changes(values=[[], []]),
        "(as many numbers in each row of a table, got 0 and 0|expected float)",
    ),
    (of_changes(values=[[1, 2], [3, 4]]), "expected floating numbers or bytes, got .* of int64"),
    (of_changes(values=BYTES), "'item': expected floating numbers, .* got rows of 2 uint8"),
    (of_changes(removed=[0, 1]), "'removed': expected booleans, got int64"),
    (of_changes(id=[7, 7]), "table 'item': ids: id 7 comes twice"),
    (of_changes(id=[7, 7], removed=[True, False]), "table 'item': id 7 is changed and removed"),
    (of_changes(**FAR_APART), "(table|'values': expected .*as many)"),
]


@pytest.mark.parametrize(
    ("suffix", "write", "words"),
    [
        *(("safetensors", *case) for case in ODD_TENSORS),
        *(("parquet", *case) for case in ODD_COLUMNS),
        ("npz", equal_as_64_bits, "table 'item': ids: id -1 comes twice"),
        ("pt", lambda path: path.write_bytes(b"x"), "a file of changed rows, .*; got '.pt'"),
    ],
)
def test_odd_changes_are_refused(suffix: str, write: Write, words: str, tmp_path: Path) -> None:
    write(path := tmp_path / f"changed.{suffix}")
    with pytest.raises(WeightsError, match=f"{path}.*{words}"):
        open_changes(path)


def test_a_table_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    columns = {"table": ["item"], "id": [1], "values": [[1.0]]}
    parquet.write_table(pa.table(columns), path := tmp_path / "changed.parquet")
    with pytest.raises(WeightsError, match="or a table for all rows; got a column and 'item'"):
        open_changes(path, table="item")
    arrays: dict[str, Any] = {"item.ids": np.array([1]), "item.values": ROWS[:1]}
    np.savez(path := tmp_path / "changed.npz", **arrays)
    with pytest.raises(WeightsError, match="names its tables itself, expected no table, got 'x'"):
        open_changes(path, table="x")
