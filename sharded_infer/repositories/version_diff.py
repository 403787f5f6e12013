"""The differences between two versions of a model, table by table."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from sharded_infer.artifacts.artifact import Artifact, open_artifact
from sharded_infer.artifacts.manifest import REPORT_NAME, Manifest, OutputDifference
from sharded_infer.artifacts.mapped_tables import TablePiece, check_files, table_pieces
from sharded_infer.artifacts.provenance import Provenance
from sharded_infer.artifacts.report_file import QuantizationReport, report_from_fields
from sharded_infer.deltas.overlays import open_overlays, overlaid
from sharded_infer.errors import ArtifactError, NotFoundError
from sharded_infer.planning.plan import StoredTable
from sharded_infer.progress import Progress, no_progress
from sharded_infer.reports.quantization.table_errors import relative_error
from sharded_infer.repositories.repository import Repository

_CHUNK_BYTES = 32 * 2**20


@dataclass(frozen=True, slots=True)
class TableSide:
    """A table in one of the versions; `relative_error` is RMS over RMS, None without a report."""

    rows: int
    dim: int
    row_format: str
    stored_bytes: int
    relative_error: float | None


@dataclass(frozen=True, slots=True)
class TableDiff:
    """One table before and after; None where it is missing.

    `rows_changed` are rows of both whose bytes differ; None if formats or dims differ.
    """

    name: str
    before: TableSide | None
    after: TableSide | None
    rows_changed: int | None


@dataclass(frozen=True, slots=True)
class OutputAuc:
    """One output's area under the ROC curve on calibration samples; None without labels."""

    name: str
    auc: float | None
    fp32_auc: float | None


@dataclass(frozen=True, slots=True)
class GateResult:
    """The gate's measurements of a version.

    Attributes:
        max_score_diff: the golden requests' largest difference from the fp32 model.
        auc: on calibration samples, of the only output with labels; None without.
        outputs: golden differences by output; empty for a single output without its own bounds.
        output_auc: empty without calibration samples, and for a single output.
    """

    max_score_diff: float
    allowed_score_diff: float
    auc: float | None
    fp32_auc: float | None
    outputs: tuple[OutputDifference, ...] = ()
    output_auc: tuple[OutputAuc, ...] = ()


@dataclass(frozen=True, slots=True)
class VersionDiff:
    """The differences between two versions; tables are all of both, in the second's order.

    `new_bytes` are of the second's files that the first lacks.
    """

    model: str
    versions: tuple[int, int]
    tables: tuple[TableDiff, ...]
    gates: tuple[GateResult, GateResult]
    file_bytes: tuple[int, int]
    new_bytes: int
    tower_changed: bool
    provenances: tuple[Provenance | None, Provenance | None] = (None, None)


def diff_versions(
    repository: Repository,
    model: str,
    versions: tuple[int, int],
    progress: Progress = no_progress,
) -> VersionDiff:
    """Compare two versions of a model, and their rows in chunks.

    `progress` is called with the bytes fetched and compared.

    Raises:
        NotFoundError: no such version.
        ArtifactError: a damaged version.
        StorageError: the repository is unreadable.
    """
    first, second = (repository.open(model, version) for version in versions)
    pair = (first.manifest, second.manifest)
    stored = tuple(manifest.stored_tables() for manifest in pair)
    reports = (_report(first), _report(second))
    comparable = [
        name
        for name, table in stored[1].items()
        if name in stored[0]
        and (table.dim, table.row_format) == (stored[0][name].dim, stored[0][name].row_format)
    ]
    # Tables in identical files need not be read.
    read = [name for name in comparable if _content(pair[0], name) != _content(pair[1], name)]
    changed = dict.fromkeys(comparable, 0)
    if read:
        changed |= _changed_rows(repository, model, versions, read, progress)
    names = [*stored[1], *(name for name in stored[0] if name not in stored[1])]
    before_files = {record.sha256 for record in pair[0].files.values()}
    new = {r.sha256: r.bytes for r in pair[1].files.values() if r.sha256 not in before_files}
    return VersionDiff(
        model=model,
        versions=versions,
        tables=tuple(
            TableDiff(
                name,
                _side(stored[0].get(name), reports[0]),
                _side(stored[1].get(name), reports[1]),
                changed.get(name),
            )
            for name in names
        ),
        gates=(_gate(pair[0], reports[0]), _gate(pair[1], reports[1])),
        file_bytes=(_bytes(pair[0]), _bytes(pair[1])),
        new_bytes=sum(new.values()),
        tower_changed=pair[0].files[pair[0].tower.file] != pair[1].files[pair[1].tower.file],
        provenances=(pair[0].provenance, pair[1].provenance),
    )


def _changed_rows(
    repository: Repository,
    model: str,
    versions: tuple[int, int],
    names: Sequence[str],
    progress: Progress,
) -> dict[str, int]:
    folders = [repository.fetch(model, version, progress) for version in versions]
    try:
        first, second = (open_artifact(folder) for folder in folders)
        tables = second.manifest.stored_tables()
        before, after = (overlaid(table_pieces(one), open_overlays(one)) for one in (first, second))
        done, total = 0, sum(tables[name].stored_bytes for name in names)
        changed = {}
        for name in names:
            changed[name] = count_changed_rows(before[name], after[name], tables[name].row_bytes)
            done += tables[name].stored_bytes
            progress("comparing rows", done, total)
        for pieces in (*before.values(), *after.values()):
            check_files(pieces)
        return changed
    finally:
        for folder in folders:
            repository.release(folder)


def count_changed_rows(
    before: Sequence[TablePiece], after: Sequence[TablePiece], row_bytes: int
) -> int:
    """Count rows whose bytes differ, from ordered pieces; reads at most 32 MiB at a time."""
    rows = min(sum(piece.rows for piece in pieces) for pieces in (before, after))
    changed, first = 0, 0
    while first < rows:
        parts = [_part_at(pieces, first) for pieces in (before, after)]
        last = min(first + max(1, _CHUNK_BYTES // row_bytes), rows)
        last = min(last, *(part.first_row + part.rows for part in parts))
        one, other = (part.read(first, last, row_bytes) for part in parts)
        changed += int((one != other).any(dim=1).sum())
        first = last
    return changed


def _part_at(pieces: Sequence[TablePiece], row: int) -> TablePiece:
    return next(p for p in pieces if p.first_row <= row < p.first_row + p.rows)


def _content(manifest: Manifest, table: str) -> list[tuple[str, str, int, int]]:
    """The content of a table's rows, by file hash and position; with all overlay files."""
    (record,) = (record for record in manifest.tables if record.name == table)
    own = [
        (manifest.files[piece.file].sha256, piece.entry, piece.first_row, piece.rows)
        for piece in record.pieces
    ]
    return own + [(manifest.files[name].sha256, "", 0, 0) for name in manifest.overlays or ()]


def _side(table: StoredTable | None, report: QuantizationReport | None) -> TableSide | None:
    if table is None:
        return None
    tables = () if report is None else report.tables
    errors = {one.name: relative_error(one) for one in tables}
    return TableSide(
        table.rows, table.dim, str(table.row_format), table.stored_bytes, errors.get(table.name)
    )


def _report(artifact: Artifact) -> QuantizationReport | None:
    if artifact.manifest.base is not None:
        # Its report covers changed rows only.
        return None
    try:
        return report_from_fields(json.loads(artifact.read_small(REPORT_NAME)), REPORT_NAME)
    except NotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        if isinstance(error, ArtifactError):
            raise
        raise ArtifactError(f"{artifact.path / REPORT_NAME}: not JSON: {error}") from error


def _gate(manifest: Manifest, report: QuantizationReport | None) -> GateResult:
    mixes = () if report is None or report.calibration is None else report.calibration.mixes
    named = {mix.name: mix for mix in mixes}
    fp32, published = named.get("fp32"), named.get("published")
    golden = manifest.golden
    both = () if report is None or report.calibration is None else report.calibration.by_output
    return GateResult(
        golden.max_score_diff,
        golden.allowed_score_diff,
        None if published is None else published.auc,
        None if fp32 is None else fp32.auc,
        golden.outputs or (),
        tuple(OutputAuc(after.name, after.auc, before.auc) for after, before in both),
    )


def _bytes(manifest: Manifest) -> int:
    return sum(record.bytes for record in manifest.files.values())
