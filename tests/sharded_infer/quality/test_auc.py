import numpy as np
import pytest

from sharded_infer.errors import InputError
from sharded_infer.quality.auc import auc


def test_the_auc_counts_ordered_pairs_and_halves_ties() -> None:
    generator = np.random.default_rng(0)
    for _ in range(20):
        labels = np.append(generator.integers(0, 2, 60), [0, 1])
        scores = generator.integers(0, 12, 62) / 8.0
        gaps = scores[labels == 1][:, None] - scores[labels == 0][None, :]
        assert auc(labels, scores) == pytest.approx(np.mean((gaps > 0) + 0.5 * (gaps == 0)))


@pytest.mark.parametrize(
    ("labels", "scores", "message"),
    [
        ([1, 1], [0.1, 0.2], "both classes, got 2 positives and 0 negatives"),
        ([], [], "got 0 positives and 0 negatives"),
        ([0, 2], [0.1, 0.2], "labels must be 0 or 1"),
        ([0, 1], [0.1, float("nan")], "must be finite, got nan at position 1"),
        ([0, 1], [0.1], r"got shapes \(2,\) and \(1,\)"),
    ],
)
def test_the_auc_refuses_other_arrays(labels: list[int], scores: list[float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        auc(labels, scores)
