import math
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.routing.weighted_choice import choose, key_position, mixed, name_hash

KEYS = 2000
SEED = name_hash("ranker")
POSITIONS = [key_position(b"user-%d" % at, SEED) for at in range(KEYS)]


def chosen(weights: Mapping[str, int]) -> list[str]:
    labels = sorted(weights)
    shares = [(name_hash(label), weights[label]) for label in labels]
    return [labels[choose(position, shares)] for position in POSITIONS]


def test_the_hashes_are_those_that_the_documentation_states() -> None:
    assert name_hash("ranker") == 0x95E0AC5D57CF0B31
    assert key_position(b"user-1", SEED) == 0x9135E37A585A10C
    assert mixed(1) == 0xB456BCFC34C2CB2C


@pytest.mark.parametrize(
    "weights",
    [
        {"stable": 95, "canary": 5},
        {"a": 50, "b": 30, "c": 15, "d": 5},
        {"stable": 10**6, "canary": 10**5},
    ],
)
def test_each_label_gets_the_share_of_its_weight(weights: dict[str, int]) -> None:
    labels, total = chosen(weights), sum(weights.values())
    for label, weight in weights.items():
        share = weight / total
        # Four standard deviations of a binomial distribution.
        spread = 4 * math.sqrt(KEYS * share * (1 - share))
        assert abs(labels.count(label) - KEYS * share) <= spread


@given(
    weights=st.dictionaries(
        st.sampled_from("abcdef"), st.integers(1, 1000), min_size=2, max_size=5
    ),
    growth=st.integers(1, 1000),
    data=st.data(),
)
@settings(max_examples=15, deadline=None)
def test_a_weight_that_grows_takes_keys_and_moves_no_others(
    weights: dict[str, int], growth: int, data: st.DataObject
) -> None:
    grown = data.draw(st.sampled_from(sorted(weights)))
    before, after = chosen(weights), chosen({**weights, grown: weights[grown] + growth})
    for old, new in zip(before, after, strict=True):
        assert new in {old, grown}


@given(
    weights=st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 1000), min_size=2, max_size=5)
)
@settings(max_examples=10, deadline=None)
def test_without_a_label_only_its_own_keys_move(weights: dict[str, int]) -> None:
    gone = min(weights)
    left = {label: weight for label, weight in weights.items() if label != gone}
    for old, new in zip(chosen(weights), chosen(left), strict=True):
        assert old in (new, gone)


def test_the_scale_of_the_weights_does_not_matter() -> None:
    assert chosen({"stable": 95, "canary": 5}) == chosen({"stable": 950, "canary": 50})


@pytest.mark.parametrize("position", [0, 1, 2**63, 2**64 - 1])
def test_every_position_has_a_label(position: int) -> None:
    assert choose(position, [(position, 1)]) == 0
    assert choose(position, [(position, 1), (position ^ 1, 10**6)]) in (0, 1)
