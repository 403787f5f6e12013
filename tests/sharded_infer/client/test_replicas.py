"""Rendezvous hashing of routing keys over replicas."""

from collections import Counter

import pytest

from sharded_infer.client.replicas import Replicas

TARGETS = [f"ranker-{number}:8001" for number in range(5)]


def always(_: int) -> bool:
    return True


def test_keys_spread_evenly_and_a_replica_that_goes_takes_its_own_alone() -> None:
    firsts = {key: Replicas(TARGETS, always).order(key)[0] for key in range(5000)}
    counts = Counter(firsts.values())
    assert min(counts.values()) > 850
    ready = Replicas(TARGETS, lambda at: at != 2)
    left = Replicas(TARGETS[:2] + TARGETS[3:], always)
    for key, first in firsts.items():
        moved = ready.order(key)
        assert moved[-1] == 2
        assert (moved[0] == first) is (first != 2)
        # Targets alone decide, not their number or order.
        assert TARGETS[moved[0]] == [*TARGETS[:2], *TARGETS[3:]][left.order(key)[0]]


def test_a_text_is_another_key_than_its_number() -> None:
    replicas = Replicas(TARGETS, always)
    orders = [(replicas.order(key), replicas.order(str(key))) for key in range(50)]
    assert any(number != text for number, text in orders)


@pytest.mark.parametrize("key", [None, ""])
def test_calls_without_a_key_go_to_each_in_turn(key: str | None) -> None:
    replicas = Replicas(TARGETS, always)
    assert [replicas.order(key)[0] for _ in range(10)] == [*range(5), *range(5)]


@pytest.mark.parametrize("targets", [[], ["a:1", "b:1", "a:1"]])
def test_no_target_and_one_named_twice_are_refused(targets: list[str]) -> None:
    with pytest.raises(ValueError, match="expected different ones, at least one"):
        Replicas(targets, always)
