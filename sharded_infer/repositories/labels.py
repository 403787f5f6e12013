"""A model's labels, such as `stable`: their versions and history.

`labels.json`: {"stable": 3, "canary": 4, "history": {"stable": [2, 1]}, "removing": [],
"weights": [{"canary": 5, "stable": 95}], "promotion": {...}, "ended": {"canary": [...]}}
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from kernels.wording import did_you_mean
from sharded_infer.errors import ArtifactError, InputError, NotFoundError
from sharded_infer.repositories.promotion.record import (
    MOST_REASON,
    WHOLE,
    EndedPromotion,
    Promotion,
    ended_fields,
    parse_ended,
    parse_promotion,
    promotion_fields,
)

LABELS_NAME = "labels.json"
MAX_LABELS_BYTES = 2**20
MOST_WEIGHTED = 8  # labels with weights
MOST_WEIGHT = 1_000_000
_KEPT = 16  # versions of a label's history, its ended promotions, and former weights
_HISTORY, _REMOVING, _WEIGHTS = "history", "removing", "weights"
_PROMOTION, _ENDED = "promotion", "ended"
_RESERVED = {_HISTORY, _REMOVING, _WEIGHTS, _PROMOTION, _ENDED, "latest"}
# Never a number, so that a request may name either; only characters safe in URLs and metrics.
_LABEL = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Labels:
    """The labels of one model; histories hold at most 16 entries, the latest first.

    Attributes:
        removing: versions under garbage collection; no label may move to them.
        weights: shares of labels in requests without a version; empty: no sharing.
        promotion: the one in progress, whose weights are in force.
        ended: each label's promotions that did not complete.
    """

    versions: Mapping[str, int] = field(default_factory=dict)
    history: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    removing: tuple[int, ...] = ()
    weights: Mapping[str, int] = field(default_factory=dict)
    past_weights: tuple[Mapping[str, int], ...] = ()
    promotion: Promotion | None = None
    ended: Mapping[str, tuple[EndedPromotion, ...]] = field(default_factory=dict)

    def moved(self, label: str, version: int) -> "Labels":
        """Move or add a label, ending its promotion; InputError, NotFoundError (in removal)."""
        check_label(label)
        if version in self.removing:
            raise NotFoundError(f"label {label!r}: version {version} is being removed")
        before = self.versions.get(label)
        if before == version:
            return self
        history = () if before is None else (before, *self.history.get(label, ()))[:_KEPT]
        promotion = self.promotion
        is_promoted = promotion is not None and label in promotion.weights
        return replace(
            self.weighted({promotion.target: WHOLE}) if promotion and is_promoted else self,
            versions={**self.versions, label: version},
            history={**self.history, label: history},
        )

    def moved_back(self, label: str, version: int) -> "Labels":
        """Move a label back, resuming its history; NotFoundError if the version is in removal."""
        past = self.history.get(label, ())
        moved = self.moved(label, version)
        kept = past[past.index(version) + 1 :] if version in past else ()
        return replace(moved, history={**moved.history, label: kept})

    def without(self, label: str) -> "Labels":
        """Remove a label and its weight; NotFoundError if there is none."""
        self.version(label)
        kept = {name: weight for name, weight in self.weights.items() if name != label}
        return replace(
            self.weighted(kept) if label in self.weights else self,
            versions={name: number for name, number in self.versions.items() if name != label},
            history={name: past for name, past in self.history.items() if name != label},
            ended={name: past for name, past in self.ended.items() if name != label},
        )

    def weighted(self, weights: Mapping[str, int]) -> "Labels":
        """Set exactly these weights, 1 to 1,000,000 of at most 8 labels; a promotion ends.

        Empty weights also clear their history. Raises InputError for invalid or too many weights,
        NotFoundError for an unknown label.
        """
        if len(weights) > MOST_WEIGHTED:
            raise InputError(
                f"expected weights of {MOST_WEIGHTED} labels at most, got {len(weights)}"
            )
        for label, weight in weights.items():
            self.version(label)
            if not 1 <= weight <= MOST_WEIGHT:
                raise InputError(
                    f"label {label!r}: expected a weight from 1 to {MOST_WEIGHT:,}, got {weight}"
                )
        if weights == self.weights and self.promotion is None:
            return self
        # Without history, releases older than weights can read the file.
        past = (self.weights, *self.past_weights)[:_KEPT] if self.weights and weights else ()
        if weights == self.weights:
            past = self.past_weights
        return replace(
            self, weights=dict(sorted(weights.items())), past_weights=past, promotion=None
        )

    def promoting(self, promotion: Promotion) -> "Labels":
        """The labels with a promotion, and the weights of its step."""
        return replace(self.weighted(promotion.weights), promotion=promotion)

    def taken_back(self, reason: str, now: float, *, keep_weights: bool = False) -> "Labels":
        """End a promotion early and record the reason; `now` in seconds since 1970.

        With `keep_weights` the source keeps its share; otherwise the target gets all requests.
        """
        if (promotion := self.promotion) is None:
            return self
        one = EndedPromotion(promotion.version, now, reason[:MOST_REASON])
        past = (one, *self.ended.get(promotion.source, ()))[:_KEPT]
        weights = self.weights if keep_weights else {promotion.target: WHOLE}
        return replace(self.weighted(weights), ended={**self.ended, promotion.source: past})

    def weights_at(self, now: float) -> Mapping[str, int]:
        """Effective weights at `now` (seconds since 1970): the target has all after expiry."""
        if self.promotion is not None and self.promotion.has_expired(now):
            return {self.promotion.target: WHOLE}
        return self.weights

    def version(self, label: str) -> int:
        """The version of a label; NotFoundError if there is none."""
        if label not in self.versions:
            known = ", ".join(sorted(self.versions)) or "none"
            raise NotFoundError(
                f"no label {label!r}; there are {known}{did_you_mean(label, self.versions)}"
            )
        return self.versions[label]

    def before(self, label: str, published: Iterable[int]) -> int:
        """A label's previous version, else the next lower one; NotFoundError if there is none."""
        now, there = self.version(label), set(published) - set(self.removing)
        for past in self.history.get(label, ()):
            if past in there and past != now:
                return past
        if lower := [number for number in there if number < now]:
            return max(lower)
        raise NotFoundError(f"label {label!r}: no version before {now} to go back to")


def check_label(label: str) -> None:
    """Refuse an invalid label name with InputError."""
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
    if labels.weights:
        fields[_WEIGHTS] = [dict(one) for one in (labels.weights, *labels.past_weights)]
    if labels.promotion is not None:
        fields[_PROMOTION] = promotion_fields(labels.promotion)
    if labels.ended:
        fields[_ENDED] = ended_fields(labels.ended)
    return json.dumps(fields, indent=1).encode() + b"\n"


def parse_labels(text: bytes, where: str) -> Labels:
    """Parse the output of `dump_labels`; ArtifactError if it is anything else."""
    try:
        fields = json.loads(text)
        if not isinstance(fields, dict):
            raise TypeError(f"expected an object, got {fields!r:.80}")
        history, removing = fields.pop(_HISTORY, {}), fields.pop(_REMOVING, [])
        weights, promotion, ended = (
            fields.pop(key, None) for key in (_WEIGHTS, _PROMOTION, _ENDED)
        )
        for key, value in ((_WEIGHTS, weights), (_PROMOTION, promotion), (_ENDED, ended)):
            if isinstance(value, int):
                raise TypeError(f"{key!r} is no label's name: expected a list or an object")
        for label in {*fields, *history}:
            check_label(label)
        labels = Labels(
            versions={label: _version(number) for label, number in fields.items()},
            history={label: tuple(map(_version, past)) for label, past in history.items()},
            removing=tuple(map(_version, removing)),
        )
        now, *past_weights = map(_weights, weights or [{}])
        labels = replace(
            labels.weighted(now),
            past_weights=tuple(past_weights),
            ended={} if ended is None else parse_ended(ended),
        )
        return labels if promotion is None else _with(labels, parse_promotion(promotion))
    # Python's JSON reader does not limit nesting itself.
    except (ValueError, TypeError, AttributeError, RecursionError, NotFoundError) as error:
        raise ArtifactError(f"{where}: not a file of labels: {error}") from error


def _version(value: object) -> int:
    if type(value) is not int or value < 1:
        raise TypeError(f"expected a version, got {value!r:.80}")
    return value


def _weights(value: object) -> dict[str, int]:
    if not isinstance(value, dict) or not all(type(one) is int for one in value.values()):
        raise TypeError(f"expected weights by label, got {value!r:.80}")
    return dict(sorted(value.items()))


def _with(labels: Labels, promotion: Promotion) -> Labels:
    versions = {promotion.source: promotion.version, promotion.target: promotion.before}
    if labels.weights != promotion.weights or not versions.items() <= labels.versions.items():
        raise ValueError(f"{_PROMOTION}: expected the labels and weights of the file")
    return replace(labels, promotion=promotion)
