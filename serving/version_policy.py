"""Which versions a server holds, and what each name means: the decision alone, without I/O.

latest:2             the newest two; the default is the newest
labels:stable,next   what the labels point at; the default is the first label's
versions:3,5         these; the default is the highest

A name moves only to a version that is ready, and the version it meant before stays, so that moving
it back takes no load.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from sharded_infer.errors import InputError

# The name of a request that names no version.
DEFAULT_NAME = ""
# Of parameters of a model's configuration that tell what `default` and labels mean: their prefix.
NAME_PARAMETER = "version."
_FORMS = "latest, latest:N, labels:NAME,NAME or versions:N,N"


class Follow(StrEnum):
    """What decides which versions are served."""

    LATEST = "latest"
    LABELS = "labels"
    VERSIONS = "versions"


@dataclass(frozen=True, slots=True)
class VersionPolicy:
    """What a server follows in its repository.

    Attributes:
        follow: what decides.
        count: of `latest`: how many versions.
        labels: of `labels`: which ones, the default first.
        versions: of `versions`: which ones.
    """

    follow: Follow = Follow.LATEST
    count: int = 1
    labels: tuple[str, ...] = ()
    versions: tuple[int, ...] = ()

    @property
    def most_held(self) -> int:
        """Versions of a model held at once, at most, one that is being loaded with them."""
        wanted = {
            Follow.LATEST: self.count,
            Follow.LABELS: 2 * len(self.labels),
            Follow.VERSIONS: len(self.versions),
        }
        return wanted[self.follow] + 2

    def __str__(self) -> str:
        values = {
            Follow.LATEST: str(self.count),
            Follow.LABELS: ",".join(self.labels),
            Follow.VERSIONS: ",".join(map(str, self.versions)),
        }
        return f"{self.follow}:{values[self.follow]}"


LATEST = VersionPolicy()


@dataclass(frozen=True, slots=True)
class Situation:
    """What is known of a model.

    Attributes:
        published: its versions, ascending.
        labels: what the repository's labels point at.
        held: versions that are loaded or being loaded.
        ready: of those, the ones that every process has loaded.
        failed: versions that are not to be tried.
        names: what each name means now.
        previous: what it meant before.
    """

    published: tuple[int, ...] = ()
    labels: Mapping[str, int] = field(default_factory=dict)
    held: frozenset[int] = frozenset()
    ready: frozenset[int] = frozenset()
    failed: frozenset[int] = frozenset()
    names: Mapping[str, int] = field(default_factory=dict)
    previous: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be done.

    Attributes:
        load: versions to load, the most wanted first.
        unload: versions to let go, once the names mean what they should.
        names: what each name means from now on.
        previous: what it meant before.
    """

    load: tuple[int, ...]
    unload: frozenset[int]
    names: dict[str, int]
    previous: dict[str, int]


def parse_policy(text: str) -> VersionPolicy:
    """Reads a policy as the command line has it.

    Args:
        text: such as `latest:2`, `labels:stable,canary` or `versions:3,5`.

    Raises:
        InputError: it is none.
    """
    kind, _, rest = text.partition(":")
    values = tuple(dict.fromkeys(rest.split(","))) if rest else ()
    if kind == Follow.LATEST and len(values) <= 1:
        return VersionPolicy(Follow.LATEST, count=_number(values[0], text) if values else 1)
    if kind == Follow.LABELS and values and all(map(_is_label, values)):
        return VersionPolicy(Follow.LABELS, labels=values)
    if kind == Follow.VERSIONS and values:
        return VersionPolicy(Follow.VERSIONS, versions=tuple(_number(v, text) for v in values))
    raise InputError(f"what to follow: expected {_FORMS}, got {text!r}")


def decide(policy: VersionPolicy, situation: Situation) -> Decision:
    """What is to be loaded and unloaded, and what each name means.

    Args:
        policy: what the server follows.
        situation: what is known.
    """
    wanted = _wanted(policy, situation)
    names = _names(policy, situation, wanted)
    previous = {
        name: version
        for name, version in situation.previous.items()
        if name in names and version in situation.ready
    }
    for name, version in situation.names.items():
        if names.get(name, version) != version and version in situation.ready:
            previous[name] = version
    resident = {*wanted, *names.values(), *previous.values()}
    return Decision(
        load=tuple(v for v in wanted if v not in situation.held),
        unload=frozenset(situation.held - resident),
        names=names,
        previous=previous,
    )


def _wanted(policy: VersionPolicy, situation: Situation) -> list[int]:
    """The versions that the policy asks for, the most wanted first."""
    if policy.follow is Follow.LATEST:
        sound = [v for v in reversed(situation.published) if v not in situation.failed]
        return sound[: policy.count]
    if policy.follow is Follow.LABELS:
        versions = [situation.labels[name] for name in policy.labels if name in situation.labels]
    else:
        versions = sorted(policy.versions, reverse=True)
    return [v for v in dict.fromkeys(versions) if v not in situation.failed]


def _names(policy: VersionPolicy, situation: Situation, wanted: list[int]) -> dict[str, int]:
    names: dict[str, int] = {}
    default = next((v for v in wanted if v in situation.ready), None)
    if policy.follow is Follow.LABELS:
        for name in policy.labels:
            target = situation.labels.get(name)
            if target is None:
                continue
            if target in situation.ready and target not in situation.failed:
                names[name] = target
            elif situation.names.get(name) in situation.ready:
                names[name] = situation.names[name]
        default = next((names[name] for name in policy.labels if name in names), None)
    if default is None and situation.names.get(DEFAULT_NAME) in situation.ready:
        default = situation.names[DEFAULT_NAME]
    if default is not None:
        names[DEFAULT_NAME] = default
    return names


def _is_label(text: str) -> bool:
    # A label of digits alone could not be told from a version.
    return bool(text) and text.isprintable() and not text.isdigit() and text == text.strip()


def _number(text: str, whole: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise InputError(f"what to follow: expected {_FORMS} with N from 1, got {whole!r}")
    return int(text)
