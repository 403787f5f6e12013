"""Fetch of the share of a version that one host of a plan needs."""

import logging
from pathlib import Path

from sharded_infer.artifacts.artifact import Artifact, verify_files
from sharded_infer.artifacts.manifest import blocks_name
from sharded_infer.artifacts.row_blocks import FileRange
from sharded_infer.lookups.placement import (
    id_ranges,
    mapped_by_hosts,
    place_stored,
    share_of,
    stored_ranges,
)
from sharded_infer.planning.plan import Plan
from sharded_infer.progress import Progress, no_progress
from sharded_infer.repositories.repository import Repository

_log = logging.getLogger("sharded_infer")


def fetch_share(
    repository: Repository,
    artifact: Artifact,
    plan: Plan,
    host: int | None,
    *,
    with_tower: bool,
    progress: Progress = no_progress,
) -> Path:
    """Fetch and verify the rows of one host; return the version's folder, locked until release.

    A version without block hashes is fetched and verified whole.

    Args:
        artifact: as the repository opened it.
        host: its number in the plan; None: no rows.
        with_tower: also fetch all non-table files, as a front needs; id maps only of tables that
            the front maps.
        progress: called with the bytes fetched and verified.

    Raises:
        NotFoundError: no such version.
        ArtifactError: a file or a block is missing or altered; names it.
        StorageError: an unreadable store or a full disk.
    """
    manifest = artifact.manifest
    if not manifest.has_block_hashes:
        _log.info(
            "%s version %d has no hashes of blocks: it is fetched and verified whole",
            manifest.model,
            manifest.version,
            extra={"model": manifest.model, "version": manifest.version},
        )
        path = repository.fetch(manifest.model, manifest.version, progress)
        try:
            verify_files(Artifact(path, manifest), progress)
        except BaseException:
            repository.release(path)
            raise
        return path
    placed = place_stored(plan, artifact)
    share, spec = share_of(placed, host), manifest.model_spec()
    files = manifest.id_maps or {}
    # Another process may already have fetched blocks of files with block hashes.
    whole = {name for name, file in files.items() if blocks_name(file) not in manifest.files}
    if with_tower:
        mapped = manifest.mapped_tables - mapped_by_hosts(placed, spec, host)
        by_blocks = {*manifest.table_files, *files.values()}
        left = by_blocks | {blocks_name(name) for name in by_blocks}
        names = set(manifest.files) - left
        of_ids = id_ranges(manifest, mapped)
    else:
        mapped = mapped_by_hosts(placed, spec) & {piece.table.name for piece in share}
        names, of_ids = set(), id_ranges(manifest, mapped, share)
    names |= {files[table] for table in mapped & whole}
    # Overlays replace rows: a host without rows needs none.
    overlays = set(manifest.overlays or ())
    names = names | overlays if share else names - overlays
    ranges: list[FileRange] = [*stored_ranges(share), *of_ids]
    return repository.fetch_rows(manifest.model, manifest.version, names, ranges, progress)
