"""Compaction: a version merged with its overlays into a whole version, without a report.

Its table files have the bytes of a publication of the same rows in the same formats.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from torch import Tensor

from sharded_infer.artifacts.artifact import Artifact
from sharded_infer.artifacts.manifest import (
    REPORT_NAME,
    REPORT_PAGE_NAME,
    FileRecord,
    Manifest,
    blocks_name,
    has_format_2,
)
from sharded_infer.artifacts.mapped_tables import TablePiece, check_files, table_pieces
from sharded_infer.artifacts.table_file import write_rows
from sharded_infer.artifacts.table_memory import TableMemory
from sharded_infer.deltas.overlays import open_overlays, overlaid
from sharded_infer.engines.golden_check import golden_differences
from sharded_infer.engines.model import Model
from sharded_infer.errors import InputError
from sharded_infer.files.staged_folder import storage_errors
from sharded_infer.progress import Progress, no_progress
from sharded_infer.publishing.deltas.linked_base import link_files
from sharded_infer.publishing.table_layout import lay_out
from sharded_infer.publishing.table_shares import FileShare, TableRange, share_of
from sharded_infer.publishing.table_writer import check_room, with_hashes
from sharded_infer.publishing.version_files import producer
from sharded_infer.quality.quality_gate import golden_record
from sharded_infer.repositories.repository import Repository
from sharded_infer.repositories.signatures.keys import SigningKey, read_signing_keys
from sharded_infer.repositories.signatures.manifest_signatures import Sealing
from sharded_infer.towers.host_products import ProductsOption

_CHUNK_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True)
class CompactedVersion:
    """A compacted version.

    Attributes:
        path: the version's folder; of a remote repository, the removed staging folder.
        location: the version's folder or URL, for display.
        compacted: the source version, of which `overlays` is the number of overlay files.
    """

    path: Path
    location: str
    version: int
    compacted: int
    overlays: int
    table_bytes: int


def compact(
    repository: Repository | Path | str,
    model: str,
    version: int | None = None,
    *,
    sign_keys: Sequence[SigningKey | Path | str] = (),
    progress: Progress = no_progress,
) -> CompactedVersion:
    """Publish a version with overlays as a whole one, under the next number.

    Args:
        version: None: the latest.
        sign_keys: as for `publish`.
        progress: called with the bytes of rows written.

    Raises:
        NotFoundError: no such version.
        InputError: it is whole already, or a key is unusable.
        ArtifactError: a damaged file.
        GateError: the golden requests' scores differ too much.
        StorageError: the disk is full or unwritable, or a store is unreachable.
    """
    repository = repository if isinstance(repository, Repository) else Repository(repository)
    sealing = Sealing.by(read_signing_keys(sign_keys))
    number = repository.latest(model) if version is None else version
    path = repository.fetch(model, number, progress)
    try:
        before = Artifact(path, repository.manifest(model, number))
        if before.manifest.base is None:
            raise InputError(f"model {model!r}: version {number} is whole already")
        with repository.staging(model) as staged, storage_errors(staged):
            complete = _written(before, staged, progress)
            folder = repository.commit(staged, complete, sealing=sealing, progress=progress)
    finally:
        repository.release(path)
    committed = int(folder.name)
    return CompactedVersion(
        path=folder,
        location=repository.where(model, committed),
        version=committed,
        compacted=number,
        overlays=len(before.manifest.overlays or ()),
        table_bytes=sum(complete.files[name].bytes for name in complete.table_files),
    )


def _written(before: Artifact, staged: Path, progress: Progress) -> Manifest:
    old = before.manifest
    tables = list(old.stored_tables().values())
    layout = lay_out(tables)
    records = _write_tables(before, staged, share_of(tables, layout), progress)
    left = {*old.table_files, *(blocks_name(name) for name in old.table_files)}
    left |= {REPORT_NAME, REPORT_PAGE_NAME, *(old.overlays or ())}
    kept = link_files(before, staged, set(old.files) - left)
    manifest = replace(
        old,
        format_version=2 if has_format_2(old.model_spec()) else 1,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        producer=producer(),
        tables=tuple(replace(one, pieces=tuple(layout[one.name])) for one in old.tables),
        files=records | kept,
        base=None,
        overlays=None,
    )
    served = Model(
        Artifact(staged, manifest),
        before.plan(),
        memory=TableMemory.MAP,
        products=ProductsOption.PUBLISHED,
    )
    golden = golden_record(old.golden, served.spec.gate, [golden_differences(served)])
    return replace(manifest, golden=golden)


def _write_tables(
    before: Artifact, staged: Path, shares: Sequence[FileShare], progress: Progress
) -> dict[str, FileRecord]:
    pieces = overlaid(table_pieces(before, TableMemory.MAP), open_overlays(before))
    check_room(staged, sum(share.bytes for share in shares))
    (staged / "tables").mkdir()
    done, total = 0, sum(share.stored_bytes for share in shares)
    written = {}
    for share in shares:

        def rows(share: FileShare = share) -> Iterator[Tensor]:
            nonlocal done
            for chunk in _chunks(share.ranges, pieces):
                yield chunk
                done += chunk.numel()
                progress("writing tables", done, total)

        written[share.file] = write_rows(
            staged / share.file, share.head, share.stored_bytes, rows()
        )
    # Data read from a truncated file must not be published.
    check_files(piece for parts in pieces.values() for piece in parts)
    return with_hashes(staged, written)


def _chunks(
    ranges: Sequence[TableRange], pieces: Mapping[str, Sequence[TablePiece]]
) -> Iterator[Tensor]:
    for one in ranges:
        step = max(1, _CHUNK_BYTES // one.table.row_bytes)
        for piece in pieces[one.table.name]:
            first = max(one.first_row, piece.first_row)
            last = min(one.last_row, piece.first_row + piece.rows)
            for row in range(first, last, step):
                yield piece.read(row, min(row + step, last), one.table.row_bytes)
