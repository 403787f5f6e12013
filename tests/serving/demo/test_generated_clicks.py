import numpy as np

from serving.demo.criteo import generated_clicks


def test_a_generated_log_has_the_shape_of_a_real_one() -> None:
    log = generated_clicks(5000, seed=3)
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


def test_generation_is_the_same_for_a_seed_and_differs_between_seeds() -> None:
    first, again, other = (generated_clicks(50, seed).categories for seed in (1, 1, 2))
    assert (first == again).all() and not (first == other).all()
