"""The origin and content of a part of a version's tables, stored as JSON."""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from kernels.row_format import RowFormat
from quant.error_meter import BINS, ChunkErrors
from sharded_infer.artifacts.manifest import Count, FileName, FileRecord, Sha256
from sharded_infer.errors import ArtifactError
from sharded_infer.publishing.format_selection import FormatPlan
from sharded_infer.publishing.table_shares import FileShare
from sharded_infer.publishing.version_files import producer

_STRICT = ConfigDict(extra="forbid", ser_json_inf_nan="constants")
_SAMPLED_ROWS = 32  # of a table's rows in a part: enough to tell one training from another
_NAME_DIGITS = 16


@dataclass(frozen=True, slots=True, config=_STRICT)
class TableOrigin:
    """A table in a part.

    `weights` is the SHA-256 of a sample of its trained rows; None if the part has none.
    """

    name: str
    rows: int
    dim: int
    row_format: RowFormat
    weights: Sha256 | None


@dataclass(frozen=True, slots=True, config=_STRICT)
class PartOrigin:
    """Everything that determines a part's bytes; tables are the whole model's in spec order.

    `part` is from 1 to `parts`; `release` is sharded-infer's.
    """

    model: str
    part: int
    parts: int
    release: str
    clip: bool
    nonfinite: str
    tables: tuple[TableOrigin, ...]

    @property
    def words(self) -> str:
        """Its number, for display."""
        return f"part {self.part}/{self.parts}"

    @property
    def name(self) -> str:
        """The part's name, which depends on weights, formats and release."""
        digest = hashlib.sha256(_ORIGIN.dump_json(self)).hexdigest()
        return f"{self.part}-of-{self.parts}-{digest[:_NAME_DIGITS]}"


@dataclass(frozen=True, slots=True, config=_STRICT)
class ChunkRecord:
    """Errors of one chunk of rows: the fields of `ChunkErrors`."""

    rows: Count
    squared_error: float
    minmax_squared_error: float | None
    square: float
    max_error: float
    histogram: Annotated[tuple[Count, ...], Field(min_length=BINS, max_length=BINS)]
    zeroed: Count

    def errors(self) -> ChunkErrors:
        """The errors, to add up."""
        fields = {name: getattr(self, name) for name in ChunkErrors.__slots__}
        return ChunkErrors(**(fields | {"histogram": np.array(self.histogram, np.int64)}))


def chunk_record(errors: ChunkErrors) -> ChunkRecord:
    """A chunk's errors, to store."""
    fields = {name: getattr(errors, name) for name in ChunkErrors.__slots__}
    return ChunkRecord(**(fields | {"histogram": tuple(errors.histogram.tolist())}))


@dataclass(frozen=True, slots=True, config=_STRICT)
class PartRecord:
    """A stored part: ranges of table files, and each chunk's errors by table in row order."""

    format_version: Literal[1]
    origin: PartOrigin
    encoder: str
    files: dict[FileName, FileRecord]
    errors: dict[str, tuple[ChunkRecord, ...]]


_ORIGIN = TypeAdapter(PartOrigin)
_RECORD = TypeAdapter(PartRecord)


def dump_record(record: PartRecord) -> bytes:
    """The record as JSON; equal records have equal bytes."""
    return _RECORD.dump_json(record, indent=1)


def parse_record(text: bytes, where: str) -> PartRecord:
    """Parse a record; ArtifactError if it is not of this release's form."""
    try:
        return _RECORD.validate_json(text, strict=True)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        place = ".".join(map(str, problem["loc"])) or "the document"
        raise ArtifactError(f"{where}: not a part's record: {place}: {problem['msg']}") from error


def origin_of(plan: FormatPlan, shares: Sequence[FileShare], part: int, parts: int) -> PartOrigin:
    """The origin of a part with these shares; reads a few rows of each of its tables."""
    sampled: dict[str, Any] = defaultdict(hashlib.sha256)
    for share in shares:
        for rows in share.ranges:
            weight, count = plan.weights[rows.table.name], min(_SAMPLED_ROWS, rows.rows)
            read = weight.read if weight.stored is None else weight.read_stored
            for place in range(count):
                row = rows.first_row + place * (rows.rows - 1) // max(1, count - 1)
                content = read(row, row + 1).contiguous().numpy()
                sampled[rows.table.name].update(content.tobytes())
    digests = {name: digest.hexdigest() for name, digest in sampled.items()}
    return PartOrigin(
        model=plan.spec.name,
        part=part,
        parts=parts,
        release=producer()["sharded-infer"],
        clip=plan.spec.quantization.clip,
        nonfinite=plan.spec.quantization.nonfinite,
        tables=tuple(
            TableOrigin(t.name, t.rows, t.dim, t.row_format, digests.get(t.name))
            for t in plan.tables
        ),
    )


def difference(found: PartOrigin, expected: PartOrigin) -> str | None:
    """The first difference between the origins of two parts; None if they match."""
    for words, there, here in (
        ("sharded-infer", found.release, expected.release),
        ("the number of parts", found.parts, expected.parts),
        ("quantization.clip", found.clip, expected.clip),
        ("quantization.nonfinite", found.nonfinite, expected.nonfinite),
        ("tables", [t.name for t in found.tables], [t.name for t in expected.tables]),
    ):
        if there != here:
            return f"{words}: {there} there, {here} here"
    for theirs, ours in zip(found.tables, expected.tables, strict=True):
        if theirs == ours:
            continue
        for words, there, here in (
            ("rows", theirs.rows, ours.rows),
            ("dim", theirs.dim, ours.dim),
            ("format", theirs.row_format, ours.row_format),
        ):
            if there != here:
                return f"table {ours.name!r}: {words} {there} there, {here} here"
        return f"table {ours.name!r}: made from other weights"
    return None
