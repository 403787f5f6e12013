"""Ids outside their tables: refused, ignored or wrapped, feature by feature."""

import pytest
import torch

from kernels.bags import Bags
from sharded_infer.errors import RequestError
from sharded_infer.id_policy import IdPolicy, keep_ids
from sharded_infer.spec import FeatureSpec, TableSpec

STRICT = FeatureSpec("user_id", TableSpec("user", rows=4, dim=1))
IGNORING = FeatureSpec("ad_id", TableSpec("ad", rows=3, dim=1, out_of_range="ignore"))
WRAPPING = FeatureSpec("page_id", TableSpec("page", rows=5, dim=1, out_of_range="modulo"))


def bags_of(values: list[int], lengths: list[list[int]], *, weighted: bool = False) -> Bags:
    weights = torch.arange(float(len(values))) if weighted else None
    return Bags(torch.tensor(values, dtype=torch.int64), torch.tensor(lengths), weights)


def test_ids_inside_are_handed_on_untouched() -> None:
    bags = bags_of([3, 2, 4], [[1], [1], [1]])
    assert IdPolicy([STRICT, IGNORING, WRAPPING]).apply(bags) == (bags, 0)


@pytest.mark.parametrize("outside", [4, -1, 2**40, -(2**63)])
def test_an_error_names_feature_sample_id_and_table(outside: int) -> None:
    bags = bags_of([3, 7, 0, outside, 9], [[1, 0, 2], [1, 0, 1]])
    policy = IdPolicy([FeatureSpec("ok", TableSpec("ok", rows=8, dim=1)), STRICT])
    words = f"feature 'user_id', sample 0: id {outside} is outside table 'user', expected 0 to 3"
    with pytest.raises(RequestError, match=words):
        policy.apply(bags)


def test_an_error_is_raised_even_beside_features_that_ignore() -> None:
    with pytest.raises(RequestError, match="feature 'user_id', sample 1: id 4"):
        IdPolicy([IGNORING, STRICT]).apply(bags_of([9, 4], [[1, 0], [0, 1]]))


def test_ignored_ids_leave_their_bags_with_their_weights() -> None:
    bags = bags_of([0, 3, -1, 2, 5, 5], [[3, 1, 0, 2]], weighted=True)
    kept, outside = IdPolicy([IGNORING]).apply(bags)
    assert outside == 4
    assert kept.values.tolist() == [0, 2]
    assert kept.lengths.tolist() == [[1, 1, 0, 0]]
    assert kept.weights is not None
    assert kept.weights.tolist() == [0.0, 3.0]


@pytest.mark.parametrize(
    ("given", "wrapped"), [(5, 0), (7, 2), (-1, 4), (-5, 0), (2**63 - 1, 2), (-(2**63), 2)]
)
def test_wrapped_ids_are_never_negative(given: int, wrapped: int) -> None:
    kept, outside = IdPolicy([WRAPPING]).apply(bags_of([given, 1], [[1, 1]]))
    assert outside == 1
    assert wrapped == given % 5
    assert kept.values.tolist() == [wrapped, 1]


def test_every_feature_has_its_own_policy() -> None:
    bags = bags_of([3, 3, 0, 8, 3], [[1], [2], [2]])
    kept, outside = IdPolicy([STRICT, IGNORING, WRAPPING]).apply(bags)
    assert outside == 2
    assert kept.values.tolist() == [3, 0, 3, 3]
    assert kept.lengths.tolist() == [[1], [1], [2]]


def test_keeping_no_ids_empties_every_bag() -> None:
    kept = keep_ids(bags_of([1, 2], [[1, 0], [0, 1]]), torch.tensor([False, False]))
    assert kept.values.tolist() == []
    assert kept.lengths.tolist() == [[0, 0], [0, 0]]
