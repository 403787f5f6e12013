"""Overlays of an opened version, in front of the pieces of its tables."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from kernels.row_overlay import OverlayLayer, RowOverlay
from sharded_infer.artifacts.artifact import Artifact
from sharded_infer.artifacts.mapped_tables import TablePiece
from sharded_infer.deltas.overlay_file import open_overlay
from sharded_infer.errors import ArtifactError, InputError


def open_overlays(
    artifact: Artifact, names: Collection[str] | None = None
) -> dict[str, RowOverlay]:
    """Maps the changed rows of a version by table, for `names` or all tables that have any.

    Raises:
        ArtifactError: a file does not hold changed rows of these tables, or a row is missing.
        CapacityError: there is not enough memory.
    """
    manifest = artifact.manifest
    tables, own_rows = manifest.stored_tables(), manifest.own_rows
    layers: dict[str, list[OverlayLayer]] = defaultdict(list)
    # Of a file that is listed twice, the later place has all rows of the earlier one.
    for file in reversed(dict.fromkeys(reversed(manifest.overlays or ()))):
        for name, changed in open_overlay(artifact.path / file, tables).items():
            layers[name].append(changed)
    for name, table in tables.items():
        if own_rows[name] < table.rows and name not in layers:
            raise ArtifactError(
                f"{artifact.path}: table {name!r}: its files hold {own_rows[name]} of {table.rows} "
                "rows, and the others are in no overlay"
            )
    chosen = layers.keys() if names is None else layers.keys() & set(names)
    return {name: _joined(artifact, name, layers[name]) for name in chosen}


def overlaid(
    pieces: Mapping[str, Sequence[TablePiece]], overlays: Mapping[str, RowOverlay]
) -> dict[str, list[TablePiece]]:
    """Pieces of tables with the overlays in front of them; the last also has the new rows.

    `pieces` are by table, in the order of their rows; all of each table with an overlay.
    """
    return {
        name: _with_overlay(parts, overlays[name]) if name in overlays else list(parts)
        for name, parts in pieces.items()
    }


def _with_overlay(parts: Sequence[TablePiece], overlay: RowOverlay) -> list[TablePiece]:
    found = [replace(part, overlay=overlay.part(part.first_row)) for part in parts]
    last = found[-1]
    if last.first_row + last.rows == overlay.own_rows:
        found[-1] = replace(last, rows=overlay.rows - last.first_row)
    return found


def _joined(artifact: Artifact, name: str, layers: Sequence[OverlayLayer]) -> RowOverlay:
    manifest = artifact.manifest
    rows, own_rows = manifest.stored_tables()[name].rows, manifest.own_rows[name]
    try:
        return RowOverlay.of(rows, own_rows, layers)
    except InputError as error:
        raise ArtifactError(f"{artifact.path}: table {name!r}: {error}") from error
