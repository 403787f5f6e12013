"""A model's labels: names such as `stable` that point at versions, and what they pointed at before.

`labels.json`: {"stable": 3, "canary": 4, "history": {"stable": [2, 1]}, "removing": []}
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from kernels.wording import did_you_mean
from sharded_infer.errors import ArtifactError, InputError, NotFoundError

LABELS_NAME = "labels.json"
MAX_LABELS_BYTES = 2**20
_KEPT = 16  # versions of a label's history
_HISTORY, _REMOVING = "history", "removing"
_RESERVED = {_HISTORY, _REMOVING, "latest"}
# Never a number, so that a request may name either; letters of URLs and metrics only.
_LABEL = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Labels:
    """The labels of one model.

    Attributes:
        versions: the version of each label.
        history: what each label pointed at before, the latest first; at most 16.
        removing: versions that a collection is removing now; no label may move to them.
    """

    versions: Mapping[str, int] = field(default_factory=dict)
    history: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    removing: tuple[int, ...] = ()

    def moved(self, label: str, version: int) -> "Labels":
        """The labels after one has moved, or was made.

        Args:
            label: its name.
            version: where it is to point.

        Raises:
            InputError: it is no label's name.
            NotFoundError: the version is being removed.
        """
        check_label(label)
        if version in self.removing:
            raise NotFoundError(f"label {label!r}: version {version} is being removed")
        before = self.versions.get(label)
        if before == version:
            return self
        history = () if before is None else (before, *self.history.get(label, ()))[:_KEPT]
        return replace(
            self,
            versions={**self.versions, label: version},
            history={**self.history, label: history},
        )

    def moved_back(self, label: str, version: int) -> "Labels":
        """The labels after one has gone back to a version, whose history it takes again.

        Args:
            label: its name.
            version: where it is to point.

        Raises:
            NotFoundError: the version is being removed.
        """
        past = self.history.get(label, ())
        moved = self.moved(label, version)
        kept = past[past.index(version) + 1 :] if version in past else ()
        return replace(moved, history={**moved.history, label: kept})

    def without(self, label: str) -> "Labels":
        """The labels but one.

        Raises:
            NotFoundError: there is no such label.
        """
        self.version(label)
        return replace(
            self,
            versions={name: number for name, number in self.versions.items() if name != label},
            history={name: past for name, past in self.history.items() if name != label},
        )

    def version(self, label: str) -> int:
        """Where a label points.

        Raises:
            NotFoundError: there is no such label.
        """
        if label not in self.versions:
            known = ", ".join(sorted(self.versions)) or "none"
            raise NotFoundError(
                f"no label {label!r}; there are {known}{did_you_mean(label, self.versions)}"
            )
        return self.versions[label]

    def before(self, label: str, published: Iterable[int]) -> int:
        """Where a label goes when it is rolled back.

        Args:
            label: its name.
            published: the versions that there are.

        Returns:
            The version that it pointed at before; without such, the next lower one.

        Raises:
            NotFoundError: there is no such label, or no version to go back to.
        """
        now, there = self.version(label), set(published) - set(self.removing)
        for past in self.history.get(label, ()):
            if past in there and past != now:
                return past
        if lower := [number for number in there if number < now]:
            return max(lower)
        raise NotFoundError(f"label {label!r}: no version before {now} to go back to")


def check_label(label: str) -> None:
    """Refuses what is no label's name.

    Raises:
        InputError: names what was expected.
    """
    if not _LABEL.fullmatch(label):
        raise InputError(
            f"{label!r} is no label: expected a letter, then letters, digits, '.', '_' and '-', "
            "64 at most"
        )
    if label in _RESERVED:
        raise InputError(f"{label!r} is reserved: expected another name for a label")


def dump_labels(labels: Labels) -> bytes:
    """The labels as JSON."""
    fields: dict[str, object] = dict(sorted(labels.versions.items()))
    if history := {name: past for name, past in sorted(labels.history.items()) if past}:
        fields[_HISTORY] = history
    if labels.removing:
        fields[_REMOVING] = labels.removing
    return json.dumps(fields, indent=1).encode() + b"\n"


def parse_labels(text: bytes, where: str) -> Labels:
    """Reads labels.

    Args:
        text: the JSON.
        where: what to call it in errors.

    Raises:
        ArtifactError: it is not what `dump_labels` writes.
    """
    try:
        fields = json.loads(text)
        if not isinstance(fields, dict):
            raise TypeError(f"expected an object, got {fields!r:.80}")
        history, removing = fields.pop(_HISTORY, {}), fields.pop(_REMOVING, [])
        for label in {*fields, *history}:
            check_label(label)
        return Labels(
            versions={label: _version(number) for label, number in fields.items()},
            history={label: tuple(map(_version, past)) for label, past in history.items()},
            removing=tuple(map(_version, removing)),
        )
    # Python's JSON reader has no limit of its own on nesting.
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ArtifactError(f"{where}: not a file of labels: {error}") from error


def _version(value: object) -> int:
    if type(value) is not int or value < 1:
        raise TypeError(f"expected a version, got {value!r:.80}")
    return value
