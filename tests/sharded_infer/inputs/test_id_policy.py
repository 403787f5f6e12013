import numpy as np
import pytest
import torch

from kernels.bags import Bags
from sharded_infer.errors import RequestError
from sharded_infer.inputs.id_policy import IdPolicy, InputPolicy
from sharded_infer.inputs.model_input import JaggedBatch, ModelInput
from sharded_infer.specs.id_map_spec import IdMapSpec
from sharded_infer.specs.id_steps import IdStep
from sharded_infer.specs.model_spec import FeatureSpec, ModelSpec, TableSpec

STRICT = FeatureSpec("user_id", TableSpec("user", rows=4, dim=1))
WRAPPING = FeatureSpec("page_id", TableSpec("page", rows=5, dim=1, out_of_range="modulo"))


def bags_of(values: list[int], lengths: list[list[int]]) -> Bags:
    return Bags(torch.tensor(values, dtype=torch.int64), torch.tensor(lengths), None)


@pytest.mark.parametrize("outside", [4, -1, 2**40, -(2**63)])
def test_an_error_names_feature_sample_id_and_table(outside: int) -> None:
    bags = bags_of([3, 7, 0, outside, 9], [[1, 0, 2], [1, 0, 1]])
    policy = IdPolicy([FeatureSpec("ok", TableSpec("ok", rows=8, dim=1)), STRICT])
    words = f"feature 'user_id', sample 0: id {outside} is outside table 'user', expected 0 to 3"
    with pytest.raises(RequestError, match=words):
        policy.apply(bags)


@pytest.mark.parametrize(
    ("given", "wrapped"), [(5, 0), (7, 2), (-1, 4), (-5, 0), (2**63 - 1, 2), (-(2**63), 2)]
)
def test_wrapped_ids_are_never_negative(given: int, wrapped: int) -> None:
    kept, outside = IdPolicy([WRAPPING]).apply(bags_of([given, 1], [[1, 1]]))
    assert outside == 1
    assert wrapped == given % 5
    assert kept.values.tolist() == [wrapped, 1]


def test_steps_come_before_bounds_and_padding() -> None:
    table = TableSpec(
        "page", 5, 1, features=("page_id", "other"), out_of_range="ignore", padding_idx=2,
        id_steps={"page_id": (("divide", 10), ("add", -3))},
    )  # fmt: skip
    sent = bags_of([3, 50, 49, 90, -1, 30, 0], [[1, 0], [3, 2], [0, 1]])
    policy = IdPolicy([STRICT, FeatureSpec("page_id", table), FeatureSpec("other", table)])
    kept, outside = policy.apply(sent)
    # Padding; rows 1, 6 and -4; row 0. The feature without steps has its own id.
    assert kept.values.tolist() == [3, 1, 0, 0]
    assert kept.lengths.tolist() == [[1, 0], [1, 1], [0, 1]]
    assert outside == 2
    assert sent.values.tolist() == [3, 50, 49, 90, -1, 30, 0]


def test_a_refused_id_is_named_as_it_was_sent_beside_its_row() -> None:
    steps: tuple[IdStep, ...] = (("multiply", 2), ("add", 100))
    table = TableSpec("user", 4, 1, features=("user_id",), id_steps={"user_id": steps})
    words = "'user_id', sample 1: id 7, row 114 after id_steps, is outside table 'user', expected 0"
    with pytest.raises(RequestError, match=words):
        IdPolicy([FeatureSpec("user_id", table)]).apply(bags_of([-49, 7], [[1, 1]]))


# Policies on whole inputs: ids inside their tables after, or a refusal.
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


def test_raw_ids_without_their_map_stay_whatever_they_are() -> None:
    raw = TableSpec("raw", rows=4, dim=1, features=("raw", "strict"), id_map=IdMapSpec("error"))
    spec = ModelSpec("left", (*SPEC.tables, raw))
    ids = np.array([3, -9, 2, 2**63 - 1, -1, -(2**63)])
    lengths = np.array([[1], [1], [1], [2], [1]])
    group = JaggedBatch(tuple(range(5)), ids, lengths)
    (checked,) = InputPolicy(spec).apply(ModelInput(1, (group,), ())).groups
    # What the other tables' policies make of theirs.
    assert checked.values.tolist() == [3, 2, 2**63 - 1, -1, -(2**63)]
    assert checked.lengths.ravel().tolist() == [1, 0, 1, 2, 1]
    group = JaggedBatch(tuple(range(5)), np.array([9, *ids[1:]]), lengths)
    with pytest.raises(RequestError, match="'strict', sample 0: id 9 is outside table 'strict'"):
        InputPolicy(spec).apply(ModelInput(1, (group,), ()))
