"""Policies on whole inputs: ids inside their tables after, or a refusal."""

import numpy as np
import pytest

from sharded_infer.batch import JaggedBatch, ModelInput
from sharded_infer.errors import RequestError
from sharded_infer.input_policy import InputPolicy
from sharded_infer.spec import ModelSpec, TableSpec

SPEC = ModelSpec(
    "policies",
    (
        TableSpec("strict", rows=4, dim=2),
        TableSpec("lenient", rows=4, dim=2, out_of_range="ignore"),
        TableSpec("hashed", rows=4, dim=2, out_of_range="modulo"),
    ),
)


def request(*ids: int) -> ModelInput:
    """A strict id of its own, and two that three samples share."""
    own = JaggedBatch((0,), np.full(3, ids[0]), np.ones((1, 3), np.int64))
    scales = np.array([0.5, 2.0], np.float32)
    shared = JaggedBatch((1, 2), np.array(ids[1:]), np.ones((2, 1), np.int64), scales)
    return ModelInput(3, (own, shared), ())


def test_ids_that_are_inside_stay_as_they_are() -> None:
    asked = request(1, 2, 3)
    checked = InputPolicy(SPEC).apply(asked)
    assert checked.ids_checked and checked.ids_outside == 0
    assert all(a is b for a, b in zip(checked.groups, asked.groups, strict=True))
    assert InputPolicy(SPEC).apply(checked) is checked


def test_ids_outside_are_ignored_or_wrapped_and_counted() -> None:
    checked = InputPolicy(SPEC).apply(request(1, 4, -1))
    assert checked.ids_checked and checked.ids_outside == 2
    _, shared = checked.groups
    assert shared.lengths.tolist() == [[0], [1]] and shared.values.tolist() == [3]
    assert shared.weights is not None and shared.weights.tolist() == [2.0]


def test_an_id_that_is_refused_is_named() -> None:
    words = "feature 'strict', sample 0: id 4 is outside table 'strict', expected 0 to 3"
    with pytest.raises(RequestError, match=words):
        InputPolicy(SPEC).apply(request(4, 1, 1))


def test_any_number_of_patterns_is_checked() -> None:
    spec = ModelSpec("many", tuple(TableSpec(f"t{i}", rows=4, dim=2) for i in range(9)))
    policy = InputPolicy(spec)
    for mask in range(1, 2**9 - 1):
        sides = [tuple(i for i in range(9) if mask >> i & 1 == side) for side in (1, 0)]
        groups = tuple(
            JaggedBatch(side, np.zeros(len(side), np.int64), np.ones((len(side), 1), np.int64))
            for side in sides
        )
        assert policy.apply(ModelInput(1, groups, ())).ids_checked
