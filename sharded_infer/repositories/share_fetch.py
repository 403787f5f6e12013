"""Brings to this machine what one host of a plan needs of a version, and no more."""

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
    share, spec = share_of(placed, host), manifest.model_spec()
    files = manifest.id_maps or {}
    # Of those with hashes of blocks, some blocks may be here already, for another process.
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
    # Changed rows stand in front of rows: who has none needs none.
    overlays = set(manifest.overlays or ())
    names = names | overlays if share else names - overlays
    ranges: list[FileRange] = [*stored_ranges(share), *of_ids]
    return repository.fetch_rows(manifest.model, manifest.version, names, ranges, progress)
