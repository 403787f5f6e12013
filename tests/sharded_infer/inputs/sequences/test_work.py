from dataclasses import replace

import numpy as np
import pytest

from sharded_infer.inputs.model_input import JaggedBatch, ModelInput
from sharded_infer.inputs.sequences.work import BatchWork
from sharded_infer.specs.model_spec import ModelSpec, TableSpec, TowerSpec
from sharded_infer.specs.sequence_spec import SequenceSpec

SPEC = ModelSpec(
    "ranker",
    (TableSpec("item", 50, 8, features=("c", "h", "a")),),
    sequences={"h": SequenceSpec(max_length=20, features=("h", "a"))},
)
ONCE = replace(SPEC, tower=TowerSpec(user_inputs=("h",)))


def group(first: int, lengths: list[list[int]]) -> JaggedBatch:
    counts = np.array(lengths, np.int64)
    features = tuple(range(first, first + len(lengths)))
    return JaggedBatch(features, np.zeros(int(counts.sum()), np.int64), counts)


def test_a_model_without_sequences_counts_samples() -> None:
    plain = replace(SPEC, sequences={})
    batch = ModelInput(3, (group(0, [[1, 2, 3], [0, 0, 9], [1, 1, 1]]),), ())
    assert BatchWork(plain).units(batch) == 3


def test_positions_beyond_the_longest_do_not_count() -> None:
    lengths = [0, 8, 9, 300]
    batch = ModelInput(4, (group(0, [[1] * 4, lengths, lengths]),), ())
    assert BatchWork(SPEC).units(batch) == 4 + 0 + 1 + 2 + 3


@pytest.mark.parametrize(("spec", "units"), [(SPEC, 5 + 2 * 2 + 3 * 1), (ONCE, 5 + 2 + 1)])
def test_what_is_computed_once_counts_once(spec: ModelSpec, units: int) -> None:
    own, shared = group(0, [[1] * 5]), group(1, [[16, 3], [16, 3]])
    batch = ModelInput(5, (own, shared), (), repeats=np.array([2, 3]))
    assert BatchWork(spec).units(batch) == units
    alone = ModelInput(5, (own, group(1, [[16], [16]])), ())
    assert BatchWork(spec).units(alone) == 5 + (10 if spec is SPEC else 2)
