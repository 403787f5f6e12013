from pathlib import Path

import numpy as np
import pytest

from quant.sources.checkpoint import open_weights
from quant.sources.npz_file import NpzSource
from quant.sources.weight_source import SourceError

ARRAYS = {
    "users.keys": np.arange(7),
    "users.values": np.arange(28, dtype=np.float32).reshape(7, 4),
    "swapped": np.arange(6, dtype=">u4").reshape(2, 3),
    "columns first": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    "nothing": np.zeros((0, 4), np.float16),
}


def _saved(path: Path) -> Path:
    np.savez(path, **ARRAYS)
    return path


def test_arrays_are_read_by_name_and_range(tmp_path: Path) -> None:
    source = open_weights(_saved(tmp_path / "a.npz"))
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
