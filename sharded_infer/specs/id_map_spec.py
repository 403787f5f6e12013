"""An id map of a table: from raw 64-bit ids to its rows, with a policy for unknown ids."""

import bisect
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass

from kernels.ids.id_hash import IdHash
from kernels.ids.partition import LAST_HASH
from sharded_infer.specs.spec_errors import spec_errors

_STRICT = ConfigDict(extra="forbid")
_Row = Annotated[int, Field(ge=0, lt=2**32)]
MOST_MAPPED_ROWS = 2**32  # of a table: an index stores rows as uint32


@spec_errors
@dataclass(frozen=True, slots=True, config=_STRICT)
class SharedRows:
    """Unknown ids read a reserved row, one for each segment of the ids.

    An id lies in segment `id // ceil(input_size / segments)`; ids that are negative or past the
    last segment, taken as unsigned, in segment `id % segments`.

    Attributes:
        rows: the row of each segment.
        input_size: nominal bound of ids; without effect for one segment.
    """

    rows: Annotated[tuple[_Row, ...], Field(min_length=1)]
    input_size: Annotated[int, Field(ge=1, lt=2**63)] = 2**63 - 1


@spec_errors
@dataclass(frozen=True, slots=True, config=_STRICT)
class HashedRows:
    """Unknown ids read rows chosen by a hash, as in TorchRec's MPZCH.

    Bucket b has rows `[b * rows / buckets, (b + 1) * rows / buckets)`. With `input_size` 0 an id
    lies in bucket `id % buckets`, else in `id // ceil(input_size / buckets)`, modulo `buckets`.

    Attributes:
        rows: of the table.
        divided: the id is hashed without its bucket: `id // buckets`, or the remainder.
        reserved: rows at the end of each bucket without known ids; None if unknown ids read any row
            of their bucket.
    """

    rows: Annotated[int, Field(ge=1)]
    buckets: Annotated[int, Field(ge=1)]
    input_size: Annotated[int, Field(ge=0, lt=2**63)] = 0
    divided: bool = False
    reserved: Annotated[int, Field(ge=0)] | None = None


@spec_errors
@dataclass(frozen=True, slots=True, config=_STRICT)
class IdPartition:
    """Parts of a table's rows, each for the ids whose hashes lie in one range.

    Unknown ids that read shared rows use those in the part of their own hash: `SharedRows.rows` are
    then relative to each part's first row.

    Attributes:
        first_rows: of each part, ascending, the first 0.
        first_hashes: the least hash of each part's ids, ascending, the first 0; see
            `kernels/ids/partition.py`.
    """

    first_rows: Annotated[tuple[_Row, ...], Field(min_length=1)]
    first_hashes: Annotated[tuple[Annotated[int, Field(ge=0, lt=2**64)], ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _parts_ascend(self) -> "IdPartition":
        if len(self.first_rows) != len(self.first_hashes):
            raise ValueError(
                f"expected a first hash for each of {len(self.first_rows)} first rows, got "
                f"{len(self.first_hashes)}"
            )
        for name, firsts in (("first_rows", self.first_rows), ("first_hashes", self.first_hashes)):
            if firsts[0] != 0 or any(one >= other for one, other in pairwise(firsts)):
                raise ValueError(f"{name}: expected ascending numbers from 0 on")
        return self

    def smallest(self, table_rows: int) -> int:
        """Rows of the smallest part of a table of this size."""
        return min(end - first for first, end in pairwise((*self.first_rows, table_rows)))

    def hashes_of_rows(self, first: int, last: int, table_rows: int) -> tuple[int, int] | None:
        """First and last hash of the ids of rows `[first, last)`; None if not whole parts."""
        ends = (*self.first_rows, table_rows)
        begin, end = (bisect.bisect_left(ends, row) for row in (first, last))
        if not begin < end < len(ends) or (ends[begin], ends[end]) != (first, last):
            return None
        hashes = (*self.first_hashes, LAST_HASH + 1)
        return hashes[begin], hashes[end] - 1


@spec_errors
@dataclass(frozen=True, slots=True, config=_STRICT)
class IdMapSpec:
    """The id map of one table. Known ids are the entries of an index that publishing writes.

    A table with `hashed` has no index: the hash of an id, modulo the rows, is its row.

    Attributes:
        unknown: "error" refuses the request of an unknown id, "zero" drops the id from its bag, and
            shared or hashed rows are read instead. None takes the source's policy, or "error". A
            published spec has one, except with `hashed`, where no id is unknown.
        strings: the hash function from strings to 64-bit ids; None: raw ids are numbers.
        seed: of that function.
        file: raw ids and their rows, relative to the spec's file; None: they are passed to
            `publish`. A published spec has none.
        hashed: the hash function of ids; None: an index maps them.
        hash_seed: of that function; None is 0.
        partition: the parts of the rows, set by publishing where a plan cuts them. None: any order.
    """

    unknown: Literal["error", "zero"] | SharedRows | HashedRows | None = None
    strings: Literal["xxh3_64", "murmur3_x64_128"] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**64)] = 0
    file: str | None = None
    hashed: Literal["identity", "murmur_hash3_2x64", "xxh3_64"] | None = None
    hash_seed: Annotated[int, Field(ge=0, lt=2**64)] | None = None
    partition: IdPartition | None = None

    @model_validator(mode="after")
    def _seed_is_of_strings(self) -> "IdMapSpec":
        if self.seed and self.strings is None:
            raise ValueError(f"seed: {self.seed} without strings, which it is for")
        if self.strings == "murmur3_x64_128" and self.seed >= 2**32:
            raise ValueError(f"seed: expected one of 32 bits for {self.strings}, got {self.seed}")
        return self

    @property
    def hashing(self) -> tuple[IdHash, int] | None:
        """The hash function of ids, and its seed; None: an index maps them."""
        return None if self.hashed is None else (IdHash(self.hashed), self.hash_seed or 0)

    @model_validator(mode="after")
    def _hashed_ids_need_no_index(self) -> "IdMapSpec":
        if self.hashed is None:
            if self.hash_seed is not None:
                raise ValueError(f"hash_seed: {self.hash_seed} without hashed, which it is for")
            return self
        if self.unknown is not None:
            raise ValueError("unknown: expected none beside hashed: every id has a row")
        if self.partition is not None:
            raise ValueError("partition: expected none beside hashed")
        if self.file is not None:
            raise ValueError(f"file: expected none beside hashed, got {self.file!r}")
        if self.hashed == "identity" and self.hash_seed:
            raise ValueError(f"hash_seed: expected 0 for identity, got {self.hash_seed}")
        return self
