import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sharded_infer.inputs.model_input import JaggedBatch
from sharded_infer.inputs.sparse_inputs import SparseInputs
from sharded_infer.specs.model_spec import ModelSpec, TableSpec

NAMES = ("a", "b", "c", "d")


@given(
    features=st.lists(st.lists(st.sampled_from(NAMES), unique=True, min_size=1), min_size=1),
    seed=st.integers(0, 2**32),
    weighted=st.booleans(),
)
def test_every_feature_has_its_inputs_bags(
    features: list[list[str]], seed: int, weighted: bool
) -> None:
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


def test_an_input_of_one_table_each_costs_nothing() -> None:
    inputs = SparseInputs(ModelSpec("m", (TableSpec("a", 9, 1), TableSpec("b", 9, 1))))
    batch = JaggedBatch((0, 1), np.array([3, 4]), np.ones((2, 1), np.int64))
    assert inputs.to_features(batch) is batch
    assert inputs.from_features(batch) is batch
