"""Policies of the versions that a server follows in its repository.

latest:2             the newest two; the default is the newest
labels:stable,next   the labels' versions; the default is the first label's
versions:3,5         these; the default is the highest
"""

from dataclasses import dataclass
from enum import StrEnum

from sharded_infer.errors import InputError
from sharded_infer.repositories.labels import MOST_WEIGHTED

# Name of a request without a version.
DEFAULT_NAME = ""
# Prefix of a model configuration's parameters that have the versions of `default` and labels.
NAME_PARAMETER = "version."
_FORMS = "latest, latest:N, labels:NAME,NAME or versions:N,N"


class Follow(StrEnum):
    """Kinds of policies."""

    LATEST = "latest"
    LABELS = "labels"
    VERSIONS = "versions"


@dataclass(frozen=True, slots=True)
class VersionPolicy:
    """The followed versions: by their number, by labels (the default first), or explicitly."""

    follow: Follow = Follow.LATEST
    count: int = 1
    labels: tuple[str, ...] = ()
    versions: tuple[int, ...] = ()

    @property
    def most_held(self) -> int:
        """Maximum of a model's versions at once, including one that is being loaded."""
        wanted = {
            Follow.LATEST: self.count,
            # Labels with weights are followed too.
            Follow.LABELS: 2 * (len(self.labels) + MOST_WEIGHTED),
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


def parse_policy(text: str) -> VersionPolicy:
    """Parses `latest:2`, `labels:stable,canary` or `versions:3,5`; InputError otherwise."""
    kind, _, rest = text.partition(":")
    values = tuple(dict.fromkeys(rest.split(","))) if rest else ()
    if kind == Follow.LATEST and len(values) <= 1:
        return VersionPolicy(Follow.LATEST, count=_number(values[0], text) if values else 1)
    if kind == Follow.LABELS and values and all(map(_is_label, values)):
        return VersionPolicy(Follow.LABELS, labels=values)
    if kind == Follow.VERSIONS and values:
        return VersionPolicy(Follow.VERSIONS, versions=tuple(_number(v, text) for v in values))
    raise InputError(f"what to follow: expected {_FORMS}, got {text!r}")


def _is_label(text: str) -> bool:
    # A label of digits alone could be mistaken for a version.
    return bool(text) and text.isprintable() and not text.isdigit() and text == text.strip()


def _number(text: str, whole: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise InputError(f"what to follow: expected {_FORMS} with N from 1, got {whole!r}")
    return int(text)
