from pathlib import Path

import numpy as np
import pytest

from serving.demo.criteo import read_clicks
from serving.demo.generated_clicks import generate_clicks
from sharded_infer.errors import InputError


def test_a_generated_log_reads_back_with_the_shape_of_a_real_one(tmp_path: Path) -> None:
    path = tmp_path / "clicks.tsv"
    generate_clicks(path, 5000, seed=3)
    log = read_clicks(path, None)
    assert log.labels.shape == (5000,)
    assert 0.2 < log.labels.mean() < 0.3
    present = log.categories != b""
    assert present[:, 0].all() and 0.3 < 1.0 - present[:, 3].mean() < 0.5
    assert not log.dense_present.all()
    assert log.dense.min() == -1 and log.dense.max() > 1000
    sizes = [np.unique(column).size for column in log.categories.T]
    assert min(sizes) <= 5 and max(sizes) > 500
    _, counts = np.unique(log.categories[:, 0], return_counts=True)
    assert counts.max() > 20 * np.median(counts)


def test_generation_is_the_same_for_a_seed_and_differs_between_seeds(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        generate_clicks(tmp_path / name, 50, seed=seed)
    first, again, other = ((tmp_path / name).read_bytes() for name in "abc")
    assert first == again != other


def test_generation_refuses_no_rows_and_a_place_it_cannot_write(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="rows must be at least 1, got 0"):
        generate_clicks(tmp_path / "clicks.tsv", 0, seed=0)
    with pytest.raises(InputError, match="cannot write click log"):
        generate_clicks(tmp_path / "absent" / "clicks.tsv", 5, seed=0)
