"""Brings to this machine what one host of a plan needs of a version, and no more."""

import logging
from collections.abc import Iterable
from pathlib import Path

from sharded_infer.artifacts.artifact import Artifact, verify_files
from sharded_infer.artifacts.manifest import Manifest, blocks_name
from sharded_infer.lookups.placement import (
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
    """Fetches and verifies the rows of one host.

    A version without hashes of blocks is fetched and verified whole.

    Args:
        artifact: as the repository opened it.
        host: the host's number in the plan; None: no rows.
        with_tower: whether all files but those of tables come too, as a front needs them; of id
            maps, those of tables that the front maps.
        progress: called with the bytes fetched and verified.

    Returns:
        The version's folder, locked until it is released to the repository.

    Raises:
        NotFoundError: there is no such version.
        ArtifactError: a file or a block is missing or altered; names it.
        StorageError: the store cannot be read, or the disk is full.
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
    share = share_of(placed, host)
    if with_tower:
        left = manifest.table_files | {blocks_name(name) for name in manifest.table_files}
        left |= _id_maps(manifest, mapped_by_hosts(placed, manifest.mapped_tables, host))
        names = set(manifest.files) - left
    else:
        own = {piece.table.name for piece in share}
        names = _id_maps(manifest, own & mapped_by_hosts(placed, manifest.mapped_tables))
    # Changed rows stand in front of rows: who has none needs none.
    overlays = set(manifest.overlays or ())
    names = names | overlays if share else names - overlays
    ranges = stored_ranges(share)
    return repository.fetch_rows(manifest.model, manifest.version, names, ranges, progress)


def _id_maps(manifest: Manifest, tables: Iterable[str]) -> set[str]:
    files = manifest.id_maps or {}
    return {files[table] for table in tables}
