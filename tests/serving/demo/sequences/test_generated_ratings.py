from pathlib import Path

import numpy as np
import pytest

from serving.demo.sequences.generated_ratings import generate_ratings
from serving.demo.sequences.ratings import read_ratings
from sharded_infer.errors import InputError


def test_a_generated_log_reads_back_with_the_shape_of_a_real_one(tmp_path: Path) -> None:
    path = tmp_path / "ratings.csv"
    generate_ratings(path, 8000, seed=3)
    log = read_ratings(path, None)
    assert log.users.size == 8000
    users, events = np.unique(log.users, return_counts=True)
    assert users[0] == 1 and 100 < users.size < 300
    assert events.min() < 20 and events.max() > 100
    _, counts = np.unique(log.items, return_counts=True)
    assert counts.max() > 5 * np.median(counts)
    assert np.unique(log.actions).size > 6
    pairs = np.stack([log.users, log.items])
    assert np.unique(pairs, axis=1).shape == pairs.shape
    gaps = np.diff(log.times)[np.diff(log.users) == 0]
    assert np.median(gaps) < 900 and np.quantile(gaps, 0.95) > 86400


def test_generation_is_the_same_for_a_seed_and_differs_between_seeds(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        generate_ratings(tmp_path / name, 50, seed=seed)
    first, again, other = ((tmp_path / name).read_bytes() for name in "abc")
    assert first == again != other


def test_generation_refuses_no_rows_and_a_place_it_cannot_write(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="rows must be at least 1, got 0"):
        generate_ratings(tmp_path / "ratings.csv", 0, seed=0)
    with pytest.raises(InputError, match="cannot write ratings"):
        generate_ratings(tmp_path / "absent" / "ratings.csv", 5, seed=0)
