"""Files of ids and of changed rows that are cut, altered, or something else."""

import os
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
