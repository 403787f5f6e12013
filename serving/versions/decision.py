"""Decides which versions a server loads and what each name means, without I/O.

A name moves only to a ready version. The version it meant before stays, so that a rollback takes
no load.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from serving.config.version_policy import (
    DEFAULT_NAME,
    Follow,
    VersionPolicy,
)


@dataclass(frozen=True, slots=True)
class KnownVersions:
    """Known versions of a model.

    Attributes:
        published: ascending.
        labels, weights: of the repository's labels.
        assigned: loaded or being loaded.
        ready: assigned versions that every process has loaded.
        failed: versions that are not tried again.
        names: present version of each name.
        previous: former version of each name.
    """

    published: tuple[int, ...] = ()
    labels: Mapping[str, int] = field(default_factory=dict)
    weights: Mapping[str, int] = field(default_factory=dict)
    assigned: frozenset[int] = frozenset()
    ready: frozenset[int] = frozenset()
    failed: frozenset[int] = frozenset()
    names: Mapping[str, int] = field(default_factory=dict)
    previous: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Decision:
    """Versions to load and unload, and the new names.

    Attributes:
        load: by descending priority.
        unload: once the names have changed.
        weights: shares of the requests without a version, by name; empty: the default gets all. A
            label without a ready version has none, so the others share its requests.
    """

    load: tuple[int, ...]
    unload: frozenset[int]
    names: dict[str, int]
    previous: dict[str, int]
    weights: dict[str, int] = field(default_factory=dict)


def decide(policy: VersionPolicy, known_versions: KnownVersions) -> Decision:
    """Decides which versions to load and unload, and the version of each name."""
    wanted = _wanted(policy, known_versions)
    names = _names(policy, known_versions, wanted)
    previous = {
        name: version
        for name, version in known_versions.previous.items()
        if name in names and version in known_versions.ready
    }
    for name, version in known_versions.names.items():
        if names.get(name, version) != version and version in known_versions.ready:
            previous[name] = version
    resident = {*wanted, *names.values(), *previous.values()}
    return Decision(
        load=tuple(v for v in wanted if v not in known_versions.assigned),
        unload=frozenset(known_versions.assigned - resident),
        names=names,
        previous=previous,
        weights={name: weight for name, weight in known_versions.weights.items() if name in names},
    )


def _followed(policy: VersionPolicy, known_versions: KnownVersions) -> tuple[str, ...]:
    """Labels that the server follows: the policy's, and those with weights."""
    return tuple(dict.fromkeys((*policy.labels, *known_versions.weights)))


def _wanted(policy: VersionPolicy, known_versions: KnownVersions) -> list[int]:
    """Versions that the policy requests, the most important first."""
    if policy.follow is Follow.LATEST:
        sound = [v for v in reversed(known_versions.published) if v not in known_versions.failed]
        return sound[: policy.count]
    if policy.follow is Follow.LABELS:
        versions = [
            known_versions.labels[name]
            for name in _followed(policy, known_versions)
            if name in known_versions.labels
        ]
    else:
        versions = sorted(policy.versions, reverse=True)
    return [v for v in dict.fromkeys(versions) if v not in known_versions.failed]


def _names(
    policy: VersionPolicy, known_versions: KnownVersions, wanted: list[int]
) -> dict[str, int]:
    names: dict[str, int] = {}
    default = next((v for v in wanted if v in known_versions.ready), None)
    if policy.follow is Follow.LABELS:
        for name in _followed(policy, known_versions):
            target = known_versions.labels.get(name)
            if target is None:
                continue
            if target in known_versions.ready and target not in known_versions.failed:
                names[name] = target
            elif known_versions.names.get(name) in known_versions.ready:
                names[name] = known_versions.names[name]
        default = next((names[name] for name in policy.labels if name in names), None)
    if default is None and known_versions.names.get(DEFAULT_NAME) in known_versions.ready:
        default = known_versions.names[DEFAULT_NAME]
    if default is not None:
        names[DEFAULT_NAME] = default
    return names
