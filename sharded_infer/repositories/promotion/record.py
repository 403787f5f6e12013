"""A promotion in the label file, which survives its promoter."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic.dataclasses import dataclass

WHOLE = 100  # percent
MOST_STEPS = 32
MOST_REASON = 1000  # characters
_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
Version = Annotated[int, Field(ge=1)]
Label = Annotated[str, Field(max_length=64)]
_T = TypeVar("_T")
Text = Annotated[str, Field(max_length=MOST_REASON)]


@dataclass(frozen=True, slots=True, config=_STRICT)
class Promotion:
    """A promotion in progress from label `source` to label `target`.

    Attributes:
        before: version of `target`.
        steps: shares of the requests in percent, ascending.
        step: index of the present share.
        since: when the step began, in seconds since 1970.
        watch_seconds: of all steps together.
        by: the promoting process, unique.
        until: expiry unless renewed, in seconds since 1970. Servers then give the source no
            requests.
    """

    source: Label
    target: Label
    version: Version
    before: Version
    steps: Annotated[
        tuple[Annotated[int, Field(ge=1, lt=WHOLE)], ...],
        Field(min_length=1, max_length=MOST_STEPS),
    ]
    step: Annotated[int, Field(ge=0)]
    since: float
    watch_seconds: Annotated[float, Field(gt=0)]
    by: Text
    until: float

    @model_validator(mode="after")
    def _steps_ascend(self) -> "Promotion":
        if any(a >= b for a, b in zip(self.steps, self.steps[1:], strict=False)):
            raise ValueError(f"steps: expected ascending percents, got {list(self.steps)}")
        if self.step >= len(self.steps):
            raise ValueError(f"step: expected 0 to {len(self.steps) - 1}, got {self.step}")
        if self.source == self.target:
            raise ValueError(f"target: expected another label than {self.source!r}")
        return self

    @property
    def share(self) -> int:
        """The source's present share of the requests, in percent."""
        return self.steps[self.step]

    @property
    def weights(self) -> dict[str, int]:
        """The weights of the present step."""
        return {self.source: self.share, self.target: WHOLE - self.share}

    @property
    def step_seconds(self) -> float:
        """The duration of each step."""
        return self.watch_seconds / len(self.steps)

    def has_expired(self, now: float) -> bool:
        """True if its promoter has not renewed it by `now` (seconds since 1970)."""
        return now > self.until

    def at_step(self, step: int, now: float) -> "Promotion":
        """The promotion at the start of a step."""
        return replace(self, step=step, since=now)


@dataclass(frozen=True, slots=True, config=_STRICT)
class EndedPromotion:
    """A promotion that did not complete; `at` in seconds since 1970."""

    version: Version
    at: float
    reason: Annotated[Text, Field(min_length=1)]


_PROMOTION = TypeAdapter(Promotion)
_ENDED = TypeAdapter(dict[Label, tuple[EndedPromotion, ...]])


def parse_promotion(value: Any) -> Promotion:
    """Parse the output of `promotion_fields`; ValueError if it is anything else."""
    return _parsed(_PROMOTION, value, "promotion")


def parse_ended(value: Any) -> dict[str, tuple[EndedPromotion, ...]]:
    """Parse the output of `ended_fields`, by label, latest first; ValueError if invalid."""
    return _parsed(_ENDED, value, "ended")


def _parsed(adapter: TypeAdapter[_T], value: Any, name: str) -> _T:
    try:
        # As JSON, whose strict mode takes lists for tuples, and rejects `true` as a number.
        return adapter.validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, (name, *first["loc"])))
        raise ValueError(f"{place}: {first['msg'].removeprefix('Value error, ')}") from error


def promotion_fields(promotion: Promotion) -> dict[str, Any]:
    """A promotion as plain values."""
    fields: dict[str, Any] = _PROMOTION.dump_python(promotion, mode="json")
    return fields


def ended_fields(ended: Mapping[str, tuple[EndedPromotion, ...]]) -> dict[str, Any]:
    """Ended promotions as plain values."""
    fields: dict[str, Any] = _ENDED.dump_python(dict(sorted(ended.items())), mode="json")
    return fields
