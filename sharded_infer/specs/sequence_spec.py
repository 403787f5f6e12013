"""A sequence: features whose rows the tower gets in order, unpooled."""

from dataclasses import field
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass

from sharded_infer.repeats import repeated
from sharded_infer.specs.names import LONGEST_NAME, Name
from sharded_infer.specs.sequence_input import IDS, LENGTHS
from sharded_infer.specs.spec_errors import spec_errors

LONGEST_SEQUENCE = 2**16


@spec_errors
@dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid"))
class SequenceSpec:
    """Features of equal lengths in a sample; L is the length of the longest one of a batch.

    The tower gets the rows of the features side by side as fp32 `[B, L, sum of dims]` under the
    sequence's name, their lengths as int64 `[B]` under `<name>_lengths`, each of `dense` as fp32
    `[B, L, width]` under its own name, and the ids of each of `ids`, as clients send them, as int64
    `[B, L]` under `<feature>_ids`. Positions beyond a sample's length are zero.

    Attributes:
        max_length: ids of a sample that are used.
        features: unpooled features of the tables, at least one.
        dense: widths of numbers that come with the ids, such as timestamps, by name.
        keep: the ids of a longer sample that are used.
        pad: the side of the zeros.
        pad_to: "longest", or "max_length" for a tower with a single length.
        min_length: ids of every sample, of a tower that has no score of shorter ones; None: 0.
        ids: features whose ids the tower gets, such as for a mask of one id.
        anchor: of longer samples, the used ids begin at a multiple of it, so that a history that
            grows has the same beginning for as many ids; None: at any id.
    """

    max_length: Annotated[int, Field(ge=1, le=LONGEST_SEQUENCE)]
    features: Annotated[tuple[Name, ...], Field(min_length=1)]
    dense: dict[Name, Annotated[int, Field(ge=1, le=8192)]] = field(default_factory=dict)
    keep: Literal["first", "last"] = "last"
    pad: Literal["left", "right"] = "right"
    pad_to: Literal["longest", "max_length"] = "longest"
    # None instead of 0: older readers refuse the key.
    min_length: Annotated[int, Field(ge=1)] | None = None
    ids: tuple[Name, ...] = ()
    anchor: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _lengths_ascend(self) -> "SequenceSpec":
        if self.shortest > self.max_length:
            raise ValueError(
                f"min_length: expected at most max_length, {self.max_length}, got {self.shortest}"
            )
        return self

    @model_validator(mode="after")
    def _anchor_fits(self) -> "SequenceSpec":
        most = self.max_length - max(1, self.shortest) + 1
        if self.anchor is not None and self.keep != "last":
            raise ValueError('anchor: expected keep = "last", got "first"')
        if self.anchor is not None and self.anchor > most:
            raise ValueError(f"anchor: expected at most {most}, got {self.anchor}")
        return self

    @model_validator(mode="after")
    def _ids_are_of_features(self) -> "SequenceSpec":
        if unknown := [name for name in self.ids if name not in self.features]:
            raise ValueError(
                f"ids: {unknown[0]!r} is not one of the sequence's features: "
                f"{', '.join(self.features)}"
            )
        most = LONGEST_NAME - len(IDS)
        if long := [name for name in self.ids if len(name) > most]:
            raise ValueError(f"ids: expected names of at most {most} characters, got {long[0]!r}")
        if twice := sorted(repeated(self.ids)):
            raise ValueError(f"ids: feature {twice[0]!r} is named more than once")
        return self

    @property
    def shortest(self) -> int:
        """The fewest ids of a sample."""
        return self.min_length or 0

    def inputs(self, name: str) -> tuple[str, ...]:
        """The tower's inputs of a sequence of this name: rows, lengths, dense ones, ids."""
        return (name, name + LENGTHS, *self.dense, *(feature + IDS for feature in self.ids))

    @property
    def members(self) -> tuple[str, ...]:
        """Its inputs on the wire."""
        return (*self.features, *self.dense)
