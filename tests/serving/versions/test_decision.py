from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from serving.config.version_policy import DEFAULT_NAME, VersionPolicy, parse_policy
from serving.versions.decision import KnownVersions, decide

LATEST = parse_policy("latest")
LABELS = parse_policy("labels:stable,canary")


def known(published: Any = (), **more: Any) -> KnownVersions:
    for name in ("assigned", "ready", "failed"):
        more[name] = frozenset(more.get(name, ()))
    more["assigned"] |= more["ready"]
    return KnownVersions(tuple(published), **more)


def test_several_latest_versions_are_loaded_from_the_newest() -> None:
    policy = parse_policy("latest:2")
    assert decide(policy, known([1, 2, 3])).load == (3, 2)
    assert decide(policy, known([1, 2, 3], ready=[2], assigned=[3])).names == {"": 2}


def test_a_repository_that_looks_empty_changes_nothing() -> None:
    decision = decide(LATEST, known([], ready=[1, 2], names={"": 2}, previous={"": 1}))
    assert (decision.load, decision.names, decision.unload) == ((), {"": 2}, frozenset())


def test_labels_name_their_versions_and_the_first_is_the_default() -> None:
    known_versions = known([1, 2, 3], labels={"stable": 1, "canary": 3, "other": 2}, ready=[1, 3])
    decision = decide(LABELS, known_versions)
    assert decision.names == {"": 1, "stable": 1, "canary": 3}
    assert decide(LABELS, known([1, 3], labels={"stable": 1, "canary": 3})).load == (1, 3)


def test_labels_with_weights_are_followed_and_share_the_requests() -> None:
    weights = {"canary": 5, "next": 5, "stable": 90}
    labels = {"stable": 1, "canary": 2, "next": 3, "other": 4}
    known_versions = known([1, 2, 3, 4], labels=labels, weights=weights)
    assert decide(LABELS, known_versions).load == (1, 2, 3)
    served = decide(LABELS, replace(known_versions, ready=frozenset({1, 2, 3})))
    assert served.names == {"": 1, "stable": 1, "canary": 2, "next": 3}
    assert served.weights == weights


def test_the_share_of_a_label_that_is_not_ready_goes_to_the_others() -> None:
    weights = {"canary": 5, "stable": 95}
    known_versions = known(
        [1, 2, 3], labels={"stable": 1, "canary": 2}, weights=weights, ready=[1], assigned=[2]
    )
    assert decide(LABELS, known_versions).weights == {"stable": 95}
    # A label that has moved means its former version until the new one is ready.
    moved = replace(
        known_versions,
        labels={"stable": 1, "canary": 3},
        ready=frozenset({1, 2}),
        names={"": 1, "stable": 1, "canary": 2},
    )
    decision = decide(LABELS, moved)
    assert decision.weights == weights and decision.names["canary"] == 2


def test_weights_count_only_where_labels_are_followed() -> None:
    known_versions = known([1, 2], labels={"stable": 1}, weights={"stable": 1}, ready=[2])
    assert decide(LATEST, known_versions).weights == {}


def test_a_label_moves_only_to_a_version_that_is_ready_and_back_without_a_load() -> None:
    names = {"": 1, "stable": 1}
    loading = decide(LABELS, known([1, 2], labels={"stable": 2}, ready=[1], names=names))
    assert loading.load == (2,) and loading.names == names
    moved = decide(LABELS, known([1, 2], labels={"stable": 2}, ready=[1, 2], names=names))
    assert moved.names == {"": 2, "stable": 2} and moved.unload == frozenset()
    back = decide(
        LABELS,
        known(
            [1, 2], labels={"stable": 1}, ready=[1, 2], names=moved.names, previous=moved.previous
        ),
    )
    assert back.load == () and back.names == names


def test_a_label_that_is_removed_names_nothing_and_the_next_is_the_default() -> None:
    known_versions = known(
        [1, 2], labels={"canary": 2}, ready=[1, 2], names={"": 1, "stable": 1, "canary": 2}
    )
    assert decide(LABELS, known_versions).names == {"": 2, "canary": 2}


def test_given_versions_are_held_and_the_highest_is_the_default() -> None:
    policy = parse_policy("versions:2,5")
    assert decide(policy, known([1, 2, 5, 7])).load == (5, 2)
    assert decide(policy, known([1, 2, 5, 7], ready=[2, 5])).names == {"": 5}
    assert decide(policy, known([1, 2, 7], ready=[2], failed=[5])).names == {"": 2}


versions = st.integers(1, 6)
some = st.frozensets(versions)


@given(
    policy=st.sampled_from(
        [LATEST, parse_policy("latest:2"), LABELS, parse_policy("versions:2,4")]
    ),
    published=some,
    labels=st.dictionaries(st.sampled_from(["stable", "canary"]), versions),
    ready=some,
    loading=some,
    failed=some,
    names=st.dictionaries(st.sampled_from(["", "stable", "canary"]), versions),
)
def test_whatever_is_known_names_mean_ready_versions_and_none_of_them_is_unloaded(
    policy: VersionPolicy,
    published: frozenset[int],
    labels: dict[str, int],
    ready: frozenset[int],
    loading: frozenset[int],
    failed: frozenset[int],
    names: dict[str, int],
) -> None:
    names = {name: version for name, version in names.items() if version in ready}
    failed -= ready | loading
    known_versions = known(
        sorted(published), labels=labels, assigned=loading, ready=ready, failed=failed, names=names
    )
    decision = decide(policy, known_versions)
    meant = set(decision.names.values())
    assert meant <= ready
    assert not meant & decision.unload
    assert not set(decision.load) & (known_versions.assigned | failed)
    assert decision.unload <= known_versions.assigned
    # Clients that name no version are never left without one that they had.
    assert DEFAULT_NAME in decision.names or DEFAULT_NAME not in names
    # Deciding again changes nothing, unless something has happened.
    again = known(
        sorted(published), labels=labels, assigned=known_versions.assigned - decision.unload,
        ready=ready - decision.unload, failed=failed, names=decision.names,
        previous=decision.previous,
    )  # fmt: skip
    assert decide(policy, again) == replace(decision, unload=frozenset())
