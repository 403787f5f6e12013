import numpy as np

from serving.demo.sequences.ratings import generated_ratings


def test_a_generated_log_has_the_shape_of_a_real_one() -> None:
    log = generated_ratings(8000, seed=3)
    assert log.users.size == 8000
    users, events = np.unique(log.users, return_counts=True)
    assert users[0] == 1 and 100 < users.size < 300
    assert events.min() < 20 and events.max() > 100
    _, counts = np.unique(log.items, return_counts=True)
    assert counts.max() > 5 * np.median(counts)
    assert 6 < np.unique(log.actions).size <= 10 and log.items.min() >= 1
    pairs = np.stack([log.users, log.items])
    assert np.unique(pairs, axis=1).shape == pairs.shape
    gaps = np.diff(log.times)[np.diff(log.users) == 0]
    assert np.median(gaps) < 900 and np.quantile(gaps, 0.95) > 86400


def test_generation_is_the_same_for_a_seed_and_differs_between_seeds() -> None:
    first, again, other = (generated_ratings(50, seed).items for seed in (1, 1, 2))
    assert (first == again).all() and not (first == other).all()
