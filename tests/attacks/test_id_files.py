"""Files of ids that are cut, altered, or are something else."""

import os
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from safetensors.numpy import save_file

from sharded_infer.errors import WeightsError
from sharded_infer.importing.id_maps.id_files import open_id_file

IDS = {"id": np.arange(100) * 7919, "row": np.arange(100)}


@pytest.fixture(params=[".npz", ".npy", ".safetensors", ".parquet"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / f"ids{request.param}"
    match request.param:
        case ".npz":
            np.savez(path, **IDS)
        case ".npy":
            np.save(path, np.stack([IDS["id"], IDS["row"]], axis=1))
        case ".safetensors":
            save_file(IDS, path)
        case _:
            parquet.write_table(pa.table(IDS), path)
    return path


def _read(path: Path) -> int:
    return sum(len(ids) for ids, _ in open_id_file(path).chunks(100))


@pytest.mark.parametrize("kept", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_cut_file_is_refused_by_name(file: Path, kept: float) -> None:
    data = file.read_bytes()
    assert _read(file) == 100
    file.write_bytes(data[: int(kept * len(data))])
    with pytest.raises(WeightsError, match=str(file)):
        _read(file)


def test_altered_bytes_are_refused_or_read_without_harm(file: Path) -> None:
    data, rng = file.read_bytes(), np.random.default_rng(8)
    for _ in range(300):
        altered = bytearray(data)
        for place in rng.integers(0, len(data), 3):
            altered[place] = rng.integers(0, 256)
        file.write_bytes(altered)
        with suppress(WeightsError):
            _read(file)


def test_what_is_no_file_is_refused_without_waiting(file: Path) -> None:
    file.unlink()
    with pytest.raises(WeightsError, match=f"{file}: cannot be read: No such file"):
        open_id_file(file)
    os.mkfifo(file)
    with pytest.raises(WeightsError, match=f"{file}.*FIFO"):
        open_id_file(file)
    file.unlink()
    file.mkdir()
    with pytest.raises(WeightsError, match=f"{file}.*folder"):
        open_id_file(file)


def test_a_npz_file_with_two_arrays_of_one_name_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ids.npz"
    np.save(tmp_path / "id.npy", IDS["id"])
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(tmp_path / "id.npy", "id.npy")
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.write(tmp_path / "id.npy", "id.npy")
    with pytest.raises(WeightsError, match="holds two arrays 'id'"):
        open_id_file(path)


def test_an_array_of_objects_is_refused_without_unpickling(tmp_path: Path) -> None:
    np.savez(tmp_path / "ids.npz", id=np.array([{"a": 1}], dtype=object))
    with pytest.raises(WeightsError, match=r"'id\.npy': expected numbers, got NumPy's dtype"):
        open_id_file(tmp_path / "ids.npz")


def test_a_npz_file_that_promises_more_than_it_holds_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ids.npz"
    np.savez(path, id=np.arange(100))
    # As long in digits, so that nothing else moves.
    path.write_bytes(path.read_bytes().replace(b"(100,)", b"(999,)"))
    with pytest.raises(WeightsError, match=r"is \[999\] int64, expected 7992 bytes, got 800"):
        open_id_file(path)
