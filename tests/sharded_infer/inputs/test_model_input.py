import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from sharded_infer.errors import RequestError
from sharded_infer.inputs.model_input import JaggedBatch, ModelInput
from sharded_infer.inputs.sparse_inputs import SparseInputs
from sharded_infer.specs.model_spec import ModelSpec, TableSpec

# Features 2, 5 and 7, two samples: [10], []; [20, 21], [22]; [], [30].
LENGTHS = np.array([[1, 0], [2, 1], [0, 1]])
VALUES = np.array([10, 20, 21, 22, 30])
WEIGHTS = np.array([1, 2, 3, 4, 5], np.float32)
BATCH = JaggedBatch((2, 5, 7), VALUES, LENGTHS, WEIGHTS)


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


@pytest.mark.parametrize("ids_checked", [False, True])
def test_samples_of_a_checked_input_are_checked(ids_checked: bool) -> None:
    dense = np.array([[1.0], [2.0]], np.float32)
    part = ModelInput(2, (BATCH,), (dense,), ids_checked, 3).samples(1, 2)
    assert (part.batch_size, part.ids_checked, part.ids_outside) == (1, ids_checked, 0)
    assert part.groups[0].values.tolist() == [22, 30] and part.dense[0].tolist() == [[2.0]]


NAMES = ("a", "b", "c", "d")


@given(
    features=st.lists(st.lists(st.sampled_from(NAMES), unique=True, min_size=1), min_size=1),
    seed=st.integers(0, 2**32),
    weighted=st.booleans(),
)
def test_features_have_inputs_bags(features: list[list[str]], seed: int, weighted: bool) -> None:
    tables = (TableSpec(f"t{n}", 9, 1, features=tuple(f)) for n, f in enumerate(features))
    inputs = SparseInputs(ModelSpec("m", tuple(tables)))
    generator = np.random.default_rng(seed)
    lengths = generator.integers(0, 3, (len(inputs.names), 2))
    values = generator.integers(0, 9, int(lengths.sum()))
    weights = generator.random(values.size, np.float32) if weighted else None
    sent = JaggedBatch(tuple(range(len(inputs.names))), values, lengths, weights)

    copied = inputs.to_features(sent)

    owners = [name for names in features for name in names]
    assert copied.features == tuple(range(len(owners)))
    for feature, name in enumerate(owners):
        bags, given_bags = copied.select([feature]), sent.select([inputs.names.index(name)])
        assert np.array_equal(bags.values, given_bags.values)
        assert np.array_equal(bags.lengths, given_bags.lengths)
        if bags.weights is not None and given_bags.weights is not None:
            assert np.array_equal(bags.weights, given_bags.weights)
    back = inputs.from_features(copied)
    assert back.features == sent.features
    assert np.array_equal(back.values, values) and np.array_equal(back.lengths, lengths)
    assert (back.weights is not None) == weighted
