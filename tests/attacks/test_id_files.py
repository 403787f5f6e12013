"""Files of ids that contradict themselves, or hold something else than ids."""

import json
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from sharded_infer.errors import WeightsError
from sharded_infer.importing.id_maps.id_files import open_id_file
from tests.attacks.test_imported_files import read_ids


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
    "ranges",
    [
        ((0, 80), (72, 152)),
        ((0, 80), (88, 168)),
        ((80, 0), (80, 160)),
    ],
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
