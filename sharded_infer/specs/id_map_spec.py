"""An id map of a table: from raw 64-bit ids to its rows, and what an unknown id means."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass

_STRICT = ConfigDict(extra="forbid")
_Row = Annotated[int, Field(ge=0, lt=2**32)]
MOST_MAPPED_ROWS = 2**32  # of a table: an index stores rows as uint32


@dataclass(frozen=True, slots=True, config=_STRICT)
class SharedRows:
    """Unknown ids read a row that is kept for them, one for each segment of the ids.

    An id lies in segment `id // ceil(input_size / segments)`; ids that are negative or past the
    last segment, taken as unsigned, in segment `id % segments`.

    Attributes:
        rows: the row of each segment.
        input_size: ids are meant to be below it; with one segment it says nothing.
    """

    rows: Annotated[tuple[_Row, ...], Field(min_length=1)]
    input_size: Annotated[int, Field(ge=1, lt=2**63)] = 2**63 - 1


@dataclass(frozen=True, slots=True, config=_STRICT)
class HashedRows:
    """Unknown ids read rows that a hash chooses, as TorchRec's MPZCH does.

    Bucket b has rows `[b * rows / buckets, (b + 1) * rows / buckets)`. With `input_size` 0 an id
    lies in bucket `id % buckets`, else in `id // ceil(input_size / buckets)`, modulo `buckets`.

    Attributes:
        rows: of the table.
        divided: the id is hashed without its bucket: `id // buckets`, or the remainder.
        reserved: rows at the end of each bucket that no known id has; None if unknown ids read
            any row of their bucket.
    """

    rows: Annotated[int, Field(ge=1)]
    buckets: Annotated[int, Field(ge=1)]
    input_size: Annotated[int, Field(ge=0, lt=2**63)] = 0
    divided: bool = False
    reserved: Annotated[int, Field(ge=0)] | None = None


@dataclass(frozen=True, slots=True, config=_STRICT)
class IdMapSpec:
    """The id map of one table. Known ids are the entries of an index that publishing writes.

    Attributes:
        unknown: what an unknown id means: "error" refuses its request, "zero" leaves it out of its
            bag, as if it were absent, and shared or hashed rows are read instead. None takes what
            the source of the ids says, or "error". A published spec has one.
        strings: the function that makes 64-bit ids of strings; None: raw ids are numbers.
        seed: of that function.
        file: raw ids and their rows, relative to the spec's file; None: they are passed to
            `publish`. A published spec has none.
    """

    unknown: Literal["error", "zero"] | SharedRows | HashedRows | None = None
    strings: Literal["xxh3_64", "murmur3_x64_128"] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**64)] = 0
    file: str | None = None

    @model_validator(mode="after")
    def _seed_is_of_strings(self) -> "IdMapSpec":
        if self.seed and self.strings is None:
            raise ValueError(f"seed: {self.seed} without strings, which it is for")
        if self.strings == "murmur3_x64_128" and self.seed >= 2**32:
            raise ValueError(f"seed: expected one of 32 bits for {self.strings}, got {self.seed}")
        return self
