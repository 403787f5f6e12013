import numpy as np
import pytest
from numpy.typing import NDArray

from sharded_infer.errors import RequestError
from sharded_infer.inputs.model_input import JaggedBatch, ModelInput

# Features 2, 5 and 7, two samples: [10], []; [20, 21], [22]; [], [30].
LENGTHS = np.array([[1, 0], [2, 1], [0, 1]])
VALUES = np.array([10, 20, 21, 22, 30])
WEIGHTS = np.array([1, 2, 3, 4, 5], np.float32)
BATCH = JaggedBatch((2, 5, 7), VALUES, LENGTHS, WEIGHTS)


def test_the_batch_size_is_the_number_of_samples() -> None:
    assert BATCH.batch_size == 2


@pytest.mark.parametrize(
    ("positions", "features", "values"),
    [
        ([0], (2,), [10]),
        ([1], (5,), [20, 21, 22]),
        ([0, 2], (2, 7), [10, 30]),
        ([1, 2], (5, 7), [20, 21, 22, 30]),
        ([0, 1, 2], (2, 5, 7), [10, 20, 21, 22, 30]),
    ],
)
def test_selected_features_keep_their_bags_and_weights(
    positions: list[int], features: tuple[int, ...], values: list[int]
) -> None:
    selected = BATCH.select(positions)
    assert selected.features == features
    assert selected.values.tolist() == values
    assert np.array_equal(selected.lengths, LENGTHS[positions])
    assert selected.weights is not None
    assert selected.weights.tolist() == WEIGHTS[np.isin(VALUES, values)].tolist()


def test_selecting_without_weights_gives_none() -> None:
    assert JaggedBatch((2, 5, 7), VALUES, LENGTHS).select([1]).weights is None


@pytest.mark.parametrize(
    ("values", "lengths", "weights", "words"),
    [
        (VALUES, LENGTHS[:2], None, r"lengths: expected \[3, B\], got \[2, 2\]"),
        (VALUES, LENGTHS.reshape(-1), None, r"lengths: expected \[3, B\], got \[6\]"),
        (VALUES, LENGTHS - 1, None, "lengths: expected none below 0, got -1"),
        (VALUES[:4], LENGTHS, None, r"values: the lengths sum to 5, got shape \[4\]"),
        (VALUES[None], LENGTHS, None, r"values: the lengths sum to 5, got shape \[1, 5\]"),
        (VALUES, LENGTHS, WEIGHTS[:4], r"weights: expected \[5\], got \[4\]"),
        (
            VALUES,
            np.array([[2**62, 2**62], [2**62, 2**62], [5, 0]]),
            None,
            f"lengths: expected none above the 5 values, got {2**62}",
        ),
    ],
)
def test_a_misfit_is_refused_by_name(
    values: NDArray[np.int64],
    lengths: NDArray[np.int64],
    weights: NDArray[np.float32] | None,
    words: str,
) -> None:
    with pytest.raises(RequestError, match=words):
        JaggedBatch((2, 5, 7), values, lengths, weights)


def test_a_trusted_batch_is_the_checked_one() -> None:
    trusted = JaggedBatch.trusted((2, 5, 7), VALUES, LENGTHS, WEIGHTS)
    for name in ("features", "values", "lengths", "weights"):
        assert getattr(trusted, name) is getattr(BATCH, name)


@pytest.mark.parametrize("ids_checked", [False, True])
def test_samples_of_a_checked_input_are_checked(ids_checked: bool) -> None:
    dense = np.array([[1.0], [2.0]], np.float32)
    whole = ModelInput(2, (BATCH,), (dense,), ids_checked, 3)
    part = whole.samples(1, 2)
    assert (part.batch_size, part.ids_checked, part.ids_outside) == (1, ids_checked, 0)
    assert part.groups[0].values.tolist() == [22, 30] and part.dense[0].tolist() == [[2.0]]
