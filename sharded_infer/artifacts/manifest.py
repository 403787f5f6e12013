"""The manifest: the content of one published version. `FORMAT.md` is its specification."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, field, replace
from datetime import datetime
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from kernels.row_format import RowFormat
from kernels.wording import counted
from quant.report import ImportReport
from sharded_infer.artifacts.provenance import Provenance
from sharded_infer.errors import ArtifactError, SpecError
from sharded_infer.planning.plan import StoredTable
from sharded_infer.specs.model_spec import ModelSpec
from sharded_infer.specs.precision import Precision
from sharded_infer.specs.spec_file import dump_spec, parse_spec

MANIFEST_NAME = "manifest.json"
TOWER_NAME = "tower.pt2"
GOLDEN_NAME = "golden.safetensors"
REPORT_NAME = "report.json"
# The report as a page, in versions of earlier releases.
REPORT_PAGE_NAME = "report.html"
MAX_MANIFEST_BYTES = 256 * 2**20
# Files of changed rows of a version, each of which takes a descriptor in every server.
MOST_OVERLAYS = 1024
BLOCK_BYTES = 2**20  # of a table file, each with a hash of its own (`block_hashes.py`)
_BLOCKS_SUFFIX = ".blocks"
_CHECKSUM_FIELD = b',\n "sha256": "%s"\n}'
_CHECKSUM = re.compile(rb',\n "sha256": "([0-9a-f]{64})"\n}\Z')
_CHECKSUM_BYTES = len(_CHECKSUM_FIELD % (b"0" * 64))


def _inside(value: str) -> str:
    path = PurePosixPath(value)
    steps = value.split("/")
    if path.is_absolute() or "\\" in value or "\0" in value or {"", ".", ".."} & set(steps):
        raise ValueError(f"{value!r} leaves the version's folder")
    return value


FileName = Annotated[str, AfterValidator(_inside)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0)]
_STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True, config=_STRICT)
class FileRecord:
    """Size and hash of one file."""

    bytes: Count
    sha256: Sha256


@dataclass(frozen=True, slots=True, config=_STRICT)
class PieceRecord:
    """A range of a table's rows: tensor `entry` of table file `file`."""

    file: FileName
    entry: str
    first_row: Count
    rows: Annotated[int, Field(ge=1)]


@dataclass(frozen=True, slots=True, config=_STRICT)
class TableRecord:
    """A table as stored."""

    name: str
    rows: Annotated[int, Field(ge=1)]
    dim: Annotated[int, Field(ge=1)]
    row_format: RowFormat
    pieces: Annotated[tuple[PieceRecord, ...], Field(min_length=1)]

    @property
    def placed_pieces(self) -> tuple[PieceRecord, ...]:
        """The pieces as plans see them: the last also has the rows that overlays add."""
        *first, last = self.pieces
        return (*first, replace(last, rows=self.rows - last.first_row))


@dataclass(frozen=True, slots=True, config=_STRICT)
class OutputRecord:
    """One output of the tower: `[B]` when width is None, else `[B, width]`."""

    name: str
    width: int | None


@dataclass(frozen=True, slots=True, config=_STRICT)
class TowerRecord:
    """The tower's program."""

    file: FileName
    precision: Precision
    outputs: Annotated[tuple[OutputRecord, ...], Field(min_length=1)]


@dataclass(frozen=True, slots=True, config=_STRICT)
class OutputDifference:
    """One output's differences on the golden requests, and their bounds (None: unbounded).

    Attributes:
        max_score_diff: in the score's unit.
        max_relative_diff: as a share of the root mean square of the fp32 model's scores; None where
            they are all 0.
    """

    name: str
    max_score_diff: float
    max_relative_diff: float | None
    allowed_score_diff: float | None
    allowed_relative_diff: float | None


@dataclass(frozen=True, slots=True, config=_STRICT)
class GoldenRecord:
    """The golden requests and the version's differences on them at publication.

    Attributes:
        max_score_diff: the largest of all outputs, from the fp32 model's scores.
        allowed_score_diff: the spec's bound for outputs without their own.
        outputs: None for a single output without its own bounds.
    """

    file: FileName
    samples: Annotated[int, Field(ge=1)]
    max_score_diff: float
    allowed_score_diff: float
    outputs: tuple[OutputDifference, ...] | None = None


@dataclass(frozen=True, slots=True, config=_STRICT)
class BaseRecord:
    """The version that a delta version changes.

    Attributes:
        sha256: of the base's manifest, as recorded there.
        changes: the last included file of a followed folder; None if none was followed.
    """

    version: Annotated[int, Field(ge=1)]
    sha256: Sha256
    changes: Annotated[str, Field(min_length=1, max_length=255)] | None = None


@dataclass(frozen=True, slots=True, config=_STRICT)
class Manifest:
    """One published version.

    Attributes:
        created_at: UTC, ISO 8601.
        producer: name to version of the software that wrote it.
        spec: the model's description, as in `model.toml`.
        tables: in the spec's order.
        plans: topology to the plan's file.
        files: every file of the version except the manifest.
        imported: the comparison with the trained model; None if there was none.
        id_maps: table to its id map's file; None if no table has one.
        row_places: table to the file of its rows' places; None if no table has one.
        base: the version that this one changes; None: it is whole.
        overlays: files of changed rows that override the tables', the earliest first; None: none.
        sha256: of all other fields as stored; None in versions of releases that wrote none, and
            before publication.
    """

    format_version: Literal[1, 2]
    model: str
    version: Annotated[int, Field(ge=1)]
    created_at: str
    producer: dict[str, str]
    spec: dict[str, Any]
    tables: tuple[TableRecord, ...]
    tower: TowerRecord
    golden: GoldenRecord
    plans: Annotated[dict[str, FileName], Field(min_length=1)]
    files: dict[FileName, FileRecord]
    imported: ImportReport | None = None
    provenance: Provenance | None = None
    id_maps: dict[str, FileName] | None = None
    row_places: dict[str, FileName] | None = None
    base: BaseRecord | None = None
    overlays: tuple[FileName, ...] | None = None
    # Not compared: versions with equal content are equal, stored or not.
    sha256: Sha256 | None = field(default=None, compare=False)

    def model_spec(self) -> ModelSpec:
        """The model's description; ArtifactError if it is invalid."""
        try:
            return parse_spec(self.spec, MANIFEST_NAME)
        except SpecError as error:
            raise ArtifactError(str(error)) from error

    def stored_tables(self) -> dict[str, StoredTable]:
        """The tables by name."""
        return {t.name: StoredTable(t.name, t.rows, t.dim, t.row_format) for t in self.tables}

    @property
    def created_seconds(self) -> float:
        """Publication time in seconds since 1970; 0 if `created_at` is not a time."""
        try:
            return datetime.fromisoformat(self.created_at).timestamp()
        except ValueError:
            return 0.0

    @property
    def table_files(self) -> frozenset[str]:
        """The files that hold rows of tables."""
        return frozenset(record.file for table in self.tables for record in table.pieces)

    @property
    def memory_files(self) -> frozenset[str]:
        """The files that are mapped or copied for serving."""
        return self.table_files | set(self.id_files.values())

    @property
    def id_files(self) -> dict[str, str]:
        """The files that map ids to rows, by table: id maps, and places of ordered rows."""
        return {**(self.id_maps or {}), **(self.row_places or {})}

    @property
    def mapped_tables(self) -> frozenset[str]:
        """The tables that have an id map."""
        return frozenset(self.id_maps or ())

    @property
    def own_rows(self) -> dict[str, int]:
        """Rows in each table's files; later rows are in overlays."""
        return {table.name: sum(piece.rows for piece in table.pieces) for table in self.tables}

    @property
    def overlay_bytes(self) -> int:
        """Bytes of all overlay files."""
        return sum(self.files[name].bytes for name in self.overlays or ())

    @property
    def id_map_bytes(self) -> int:
        """Bytes of all id maps, and of all places of ordered rows."""
        return sum(self.files[name].bytes for name in self.id_files.values())

    @property
    def has_block_hashes(self) -> bool:
        """True if parts of table files can be verified; earlier releases wrote no block hashes."""
        return all(blocks_name(name) in self.files for name in self.table_files)

    @property
    def table_bytes(self) -> int:
        """Bytes of all stored rows."""
        return sum(table.stored_bytes for table in self.stored_tables().values())


_ADAPTER = TypeAdapter(Manifest)


def blocks_name(table_file: str) -> str:
    """The name of the file with the hashes of a table file's blocks."""
    return table_file + _BLOCKS_SUFFIX


def dump_manifest(manifest: Manifest) -> bytes:
    """The manifest as JSON, with its current checksum."""
    unwritten: dict[str, Any] = {"sha256": True, **_unused(manifest)}
    if manifest.provenance is not None:
        said = asdict(manifest.provenance)
        unwritten["provenance"] = {name for name, value in said.items() if value is None}
    return with_checksum(_ADAPTER.dump_json(manifest, indent=1, exclude=unwritten))


def with_checksum(text: bytes) -> bytes:
    """Append the SHA-256 of a manifest's JSON to it, as its last field."""
    covered = text.rstrip().removesuffix(b"}").rstrip()
    return covered + _CHECKSUM_FIELD % hashlib.sha256(covered).hexdigest().encode()


def parse_manifest(text: bytes, where: str) -> Manifest:
    """Parse and check a manifest: JSON of at most `MAX_MANIFEST_BYTES`.

    Raises ArtifactError, naming `where`: a wrong checksum, an unknown format version, a missing or
    invalid field, a path that leaves the version's folder, or tables that differ from the spec's.
    """
    last = _CHECKSUM.search(text, max(0, len(text) - _CHECKSUM_BYTES))
    if last is not None:
        got, expected = hashlib.sha256(text[: last.start()]).hexdigest(), last[1].decode()
        if got != expected:
            raise ArtifactError(
                f"{where}: altered: the SHA-256 of its fields is {got}, it says {expected}"
            )
    try:
        manifest = _ADAPTER.validate_json(text, strict=True)
    except ValidationError as error:
        raise ArtifactError(f"{where}: {_explain(error, text)}") from error
    if manifest.sha256 is not None and last is None:
        raise ArtifactError(f"{where}: altered: sha256 is not its last field, as it is written")
    _check_agreement(manifest, where)
    return manifest


def _explain(error: ValidationError, text: bytes) -> str:
    problems = error.errors(include_url=False)
    # A later format may differ in every field: this one explains the failure.
    of_format = [problem for problem in problems if problem["loc"] == ("format_version",)]
    problem = (of_format or problems)[0]
    place = ".".join(map(str, problem["loc"])) or "the document"
    if problem["type"] == "json_invalid":
        return (
            f"{place}: {problem['msg']}: {counted(len(text), 'byte')}: damaged, or not a manifest"
        )
    came = str(problem["input"])[:80]
    if of_format and problem["type"] == "literal_error":
        return f"{place}: expected 1 or 2, got {came!r}{_written_by(text, problem['input'])}"
    return f"{place}: {problem['msg']}, got {came!r}"


def _written_by(text: bytes, said: object) -> str:
    """The producer of a manifest of another format, and advice about a later format."""
    try:
        producer = json.loads(text).get("producer")
    except (ValueError, RecursionError):
        producer = None
    version = producer.get("sharded-infer") if isinstance(producer, dict) else None
    writer = f"; sharded-infer {version!s:.40} wrote it" if version else ""
    is_later = type(said) is int and said > 2
    return f"{writer}; upgrade sharded-infer to read it" if is_later else writer


def _check_agreement(manifest: Manifest, where: str) -> None:
    spec = manifest.model_spec()
    expected = [(t.name, t.rows, t.dim, spec.row_format(t)) for t in spec.tables]
    found = [(t.name, t.rows, t.dim, t.row_format) for t in manifest.tables]
    if spec.name != manifest.model or _without_serving(dump_spec(spec)) != _without_serving(
        manifest.spec
    ):
        raise ArtifactError(f"{where}: the spec does not agree with model {manifest.model!r}")
    if expected != found:
        raise ArtifactError(f"{where}: the tables are not those of the spec")
    if tuple(o.name for o in manifest.tower.outputs) != spec.tower.outputs:
        raise ArtifactError(f"{where}: the tower's outputs are not those of the spec")
    judged = manifest.golden.outputs
    if judged is not None and tuple(o.name for o in judged) != spec.tower.outputs:
        raise ArtifactError(f"{where}: golden.outputs are not those of the spec")
    _check_id_maps(manifest, spec, where)
    for table in manifest.tables:
        next_row = 0
        for piece in table.pieces:
            if piece.first_row != next_row:
                raise ArtifactError(
                    f"{where}: table {table.name!r}: a piece begins at row {piece.first_row}, "
                    f"expected {next_row}"
                )
            next_row += piece.rows
        if next_row != table.rows and not (manifest.overlays and next_row < table.rows):
            raise ArtifactError(
                f"{where}: table {table.name!r}: its pieces hold {next_row} of "
                f"{counted(table.rows, 'row')}"
            )
    named = {piece.file for table in manifest.tables for piece in table.pieces}
    named |= {manifest.tower.file, manifest.golden.file, *manifest.plans.values()}
    named |= {*manifest.id_files.values(), *(manifest.overlays or ())}
    if unlisted := sorted(named - set(manifest.files)):
        raise ArtifactError(f"{where}: {unlisted[0]!r} is used but has no size and hash")


def _check_id_maps(manifest: Manifest, spec: ModelSpec, where: str) -> None:
    mapped = [table.name for table in spec.mapped_tables]
    ordered = [table.name for table in spec.ordered_tables]
    for name, expected, given in (
        ("id_maps", mapped, manifest.id_maps),
        ("row_places", ordered, manifest.row_places),
    ):
        if list(given or {}) != expected:
            raise ArtifactError(
                f"{where}: {name}: expected those of tables {expected}, got {list(given or {})}"
            )
    _check_format(manifest, spec, where)
    for table in spec.mapped_tables:
        if table.id_map is None or table.id_map.unknown is None:
            raise ArtifactError(
                f"{where}: table {table.name!r}: its id map does not say what unknown means"
            )


def _check_format(manifest: Manifest, spec: ModelSpec, where: str) -> None:
    base, overlays = manifest.base, manifest.overlays
    if overlays is not None and (base is None or not overlays):
        raise ArtifactError(f"{where}: overlays: expected one or more, and a base, or none")
    if (count := len(set(overlays or ()))) > MOST_OVERLAYS:
        raise ArtifactError(
            f"{where}: overlays: expected at most {MOST_OVERLAYS} files of changed rows, each of "
            f"which takes a descriptor, got {count}"
        )
    if base is not None and base.version >= manifest.version:
        raise ArtifactError(
            f"{where}: base.version: expected one before {manifest.version}, got {base.version}"
        )
    sequences = len(spec.sequences)
    expected = 2 if has_format_2(spec) or base is not None else 1
    if manifest.format_version != expected:
        raise ArtifactError(
            f"{where}: format_version: expected {expected} for "
            f"{counted(len(spec.raw_tables), 'table')} with raw ids, "
            f"{len(spec.ordered_tables)} with ordered rows, "
            f"{sum(bool(table.id_steps) for table in spec.tables)} with id_steps, "
            f"{counted(sequences, 'sequence')} and {'a' if base else 'no'} base, got "
            f"{manifest.format_version}"
        )


def has_format_2(spec: ModelSpec) -> bool:
    """True if a spec needs format version 2, even without a base."""
    return not spec.ids_are_rows or bool(spec.sequences or spec.tower.user_inputs)


def _without_serving(spec: Mapping[str, Any]) -> dict[str, Any]:
    # Serving settings may gain fields: older versions have their defaults.
    return {name: value for name, value in spec.items() if name != "serving"}


def manifest_fields(manifest: Manifest) -> dict[str, Any]:
    """The manifest as plain values, for display."""
    fields = asdict(manifest)
    for name, within in _unused(manifest).items():
        if within is True:
            del fields[name]
        else:
            for inner in within:
                del fields[name][inner]
    return fields


def _unused(manifest: Manifest) -> dict[str, Any]:
    """Optional fields to leave out, so that older readers accept the manifest.

    True by a field's name, or the names of nested fields.
    """
    unused: dict[str, Any] = {
        name: True
        for name in ("imported", "provenance", "id_maps", "row_places", "base", "overlays")
        if getattr(manifest, name) is None
    }
    if manifest.base is not None and manifest.base.changes is None:
        unused["base"] = {"changes"}
    if manifest.golden.outputs is None:
        unused["golden"] = {"outputs"}
    return unused
