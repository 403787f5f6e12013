from pathlib import Path

import numpy as np
import pytest
import torch

from quant.sources.checkpoint import open_weights
from quant.sources.numpy_files import NpzSource, NumpySource
from quant.sources.weight_source import SourceError

WEIGHT = np.arange(12, dtype=np.float32).reshape(4, 3)
DTYPES = [
    *("bool", "float16", "float32", "float64", "complex64", "complex128"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
]


def saved(path: Path, array: object) -> Path:
    np.save(path, np.asanyarray(array))
    return path


def refused(path: Path, words: str) -> None:
    with pytest.raises(SourceError, match=f"{path}: {words}"):
        NumpySource(path)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("layout", ["C", "F"])
def test_numbers_of_any_order_are_read(dtype: str, order: str, layout: str, tmp_path: Path) -> None:
    array = np.array(WEIGHT, np.dtype(dtype).newbyteorder(order), order=layout)
    rows = NumpySource(saved(tmp_path / "ads.npy", array)).read("ads", 1, 4)
    assert rows.dtype is getattr(torch, dtype) and rows.is_contiguous()
    assert np.array_equal(rows.numpy(), array[1:4])


@pytest.mark.parametrize(
    ("array", "dtype"),
    [
        (np.array(["a"]), "<U1"),
        (np.array([b"a"]), r"\|S1"),
        (np.zeros(2, "V2"), r"\|V2"),
        (np.zeros(2, "M8[s]"), "datetime64"),
        (np.zeros(2, [("a", "f4")]), "'a', '<f4'"),
        (np.zeros(2, np.longdouble), "float128"),
    ],
)
def test_what_is_no_number_is_refused_by_dtype(array: object, dtype: str, tmp_path: Path) -> None:
    words = f"expected numbers, got NumPy's dtype .*{dtype}.*NumPy has no bfloat16"
    refused(saved(tmp_path / "ads.npy", array), words)


def test_an_array_of_objects_is_refused_without_unpickling(tmp_path: Path) -> None:
    path = saved(tmp_path / "ads.npy", np.array([{"a": 1}], dtype=object))
    refused(path, "not a readable .npy file: .*Python objects")


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    refused(tmp_path, "holds no .npy files")
    refused(tmp_path / "ads.npy", "not a readable .npy file: .*No such file")


def test_a_file_changed_after_it_was_opened_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "ads.npy", WEIGHT)
    source = NumpySource(path)
    saved(path, WEIGHT[:2])
    words = rf"{path}: changed since it was opened: expected \[4, 3\], got \[2, 3\]"
    with pytest.raises(SourceError, match=words):
        source.read("ads", 0, 1)
    path.unlink()
    with pytest.raises(SourceError, match=f"{path}: not a readable .npy file"):
        source.read("ads", 0, 1)


ARRAYS = {
    "users.keys": np.arange(7),
    "users.values": np.arange(28, dtype=np.float32).reshape(7, 4),
    "swapped": np.arange(6, dtype=">u4").reshape(2, 3),
    "columns first": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    "nothing": np.zeros((0, 4), np.float16),
}


def test_arrays_are_read_by_name_and_range(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **ARRAYS)
    source = open_weights(tmp_path / "a.npz")
    assert isinstance(source, NpzSource)
    assert list(source.keys()) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert source.shape(name) == array.shape
        for start, stop in [(0, len(array)), (min(1, len(array)), len(array)), (0, 0)]:
            assert np.array_equal(source.read(name, start, stop).numpy(), array[start:stop])


def test_a_compressed_file_is_refused(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", ids=np.arange(3))
    with pytest.raises(SourceError, match=r"a\.npz: 'ids\.npy': is compressed; save it with"):
        NpzSource(tmp_path / "a.npz")
