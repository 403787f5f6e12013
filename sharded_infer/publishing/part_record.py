"""What a part of a version's tables was made from, and what it holds; stored as JSON."""

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
    """A table as a part took it.

    Attributes:
        weights: SHA-256 of some of its trained rows in the part; None if the part has none.
    """

    name: str
    rows: int
    dim: int
    row_format: RowFormat
    weights: Sha256 | None


@dataclass(frozen=True, slots=True, config=_STRICT)
class PartOrigin:
    """All that decides a part's bytes.

    Attributes:
        part: from 1 to `parts`.
        release: of sharded-infer.
        clip: `quantization.clip` of the spec.
        nonfinite: `quantization.nonfinite` of the spec.
        tables: of the whole model, in the spec's order.
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
        """Its number, for people."""
        return f"part {self.part}/{self.parts}"

    @property
    def name(self) -> str:
        """The part's name, which other weights, formats or releases change."""
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
    """A stored part.

    Attributes:
        encoder: see `QuantizationReport`.
        files: ranges of table files, by the file's name.
        errors: of each chunk, by table, in the order of the rows.
    """

    format_version: Literal[1]
    origin: PartOrigin
    encoder: str
    files: dict[FileName, FileRecord]
    errors: dict[str, tuple[ChunkRecord, ...]]


_ORIGIN = TypeAdapter(PartOrigin)
_RECORD = TypeAdapter(PartRecord)


def dump_record(record: PartRecord) -> bytes:
    """The record as JSON, the same bytes for equal records."""
    return _RECORD.dump_json(record, indent=1)


def parse_record(text: bytes, where: str) -> PartRecord:
    """Reads a record.

    Args:
        where: the record's name in errors.

    Raises:
        ArtifactError: it is no record of this release's form.
    """
    try:
        return _RECORD.validate_json(text, strict=True)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        place = ".".join(map(str, problem["loc"])) or "the document"
        raise ArtifactError(f"{where}: not a part's record: {place}: {problem['msg']}") from error


def origin_of(plan: FormatPlan, shares: Sequence[FileShare], part: int, parts: int) -> PartOrigin:
    """What a part is made from; reads a few rows of each table in the part.

    Args:
        shares: the part's, as `share_of` gives them.
    """
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
    """The first reason why one part does not stand for another; None if it does."""
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
