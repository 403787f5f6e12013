"""Changed rows of a version, in files, in front of the pieces of its tables.

A file is a table file with the ids and the stored rows of each changed table:

<table>.ids     uint8 [M, 4]: rows of the table as uint32, ascending; [M, 8] as uint64 for a
                table of more than 2^32 rows
<table>.rows    uint8 [M, row_bytes]
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.row_overlay import OverlayLayer, RowOverlay
from sharded_infer.artifacts.artifact import Artifact
from sharded_infer.artifacts.manifest import FileRecord
from sharded_infer.artifacts.mapped_tables import TablePiece
from sharded_infer.artifacts.table_file import MappedTable, map_table_file, write_rows
from sharded_infer.artifacts.table_header import TableEntry, table_file_head
from sharded_infer.errors import ArtifactError, InputError
from sharded_infer.planning.plan import StoredTable

FOLDER = "overlays"
_IDS, _ROWS = ".ids", ".rows"
_MOST_SHORT_ROWS = 2**32


def write_overlay(
    path: Path, tables: Mapping[str, StoredTable], changed: Mapping[str, OverlayLayer]
) -> FileRecord:
    """Writes a new file of changed rows of at least one table."""
    entries: list[TableEntry] = []
    for name, rows in changed.items():
        table, count = tables[name], len(rows.ids)
        entries.append(TableEntry(name + _IDS, count, _id_dtype(table).itemsize))
        entries.append(TableEntry(name + _ROWS, count, table.row_bytes))

    def parts() -> Iterator[Tensor]:
        for name, rows in changed.items():
            ids = rows.ids.astype(_id_dtype(tables[name]))
            yield torch.from_numpy(ids.view(np.uint8))
            yield rows.stored

    head, size = table_file_head(entries), sum(entry.stored_bytes for entry in entries)
    return write_rows(path, head, size, parts()).record


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
        for name, changed in _open_overlay(artifact.path / file, tables).items():
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
    placed = [replace(part, overlay=overlay.part(part.first_row)) for part in parts]
    last = placed[-1]
    if last.first_row + last.rows == overlay.own_rows:
        placed[-1] = replace(last, rows=overlay.rows - last.first_row)
    return placed


def _joined(artifact: Artifact, name: str, layers: Sequence[OverlayLayer]) -> RowOverlay:
    manifest = artifact.manifest
    rows, own_rows = manifest.stored_tables()[name].rows, manifest.own_rows[name]
    try:
        return RowOverlay.of(rows, own_rows, layers)
    except InputError as error:
        raise ArtifactError(f"{artifact.path}: table {name!r}: {error}") from error


def _open_overlay(path: Path, tables: Mapping[str, StoredTable]) -> dict[str, OverlayLayer]:
    """Maps a file of changed rows by table; their ids are read and checked."""
    # Its rows are read at random, as a table's are.
    mapped = map_table_file(path, large=True)
    names = [name.removesuffix(_IDS) for name in mapped if name.endswith(_IDS)]
    if sorted(mapped) != sorted(name + end for name in names for end in (_IDS, _ROWS)):
        raise ArtifactError(
            f"{path.name}: expected ids and rows of each changed table, got {', '.join(mapped)}"
        )
    return {
        name: _changed_rows(path, tables, name, mapped[name + _IDS], mapped[name + _ROWS])
        for name in names
    }


def _changed_rows(
    path: Path, tables: Mapping[str, StoredTable], name: str, ids: MappedTable, rows: MappedTable
) -> OverlayLayer:
    table = tables.get(name)
    if table is None:
        raise ArtifactError(f"{path.name}: {name!r} is no table of the version")
    shapes = ids.entry.rows, ids.entry.row_bytes, rows.entry.rows, rows.entry.row_bytes
    dtype, count = _id_dtype(table), ids.entry.rows
    if not count or shapes != (count, dtype.itemsize, count, table.row_bytes):
        raise ArtifactError(
            f"{path.name}: table {name!r}: expected ids [M, {dtype.itemsize}] and rows "
            f"[M, {table.row_bytes}], got {list(shapes[:2])} and {list(shapes[2:])}"
        )
    of_table = _bytes(ids).numpy().view(dtype).astype(np.int64)
    _check_ids(f"{path.name}: table {name!r}", of_table, table.rows)
    return OverlayLayer(of_table, _bytes(rows).view(count, table.row_bytes), rows.file)


def _check_ids(where: str, ids: NDArray[np.int64], rows: int) -> None:
    falls = ids[1:] <= ids[:-1]
    if falls.any():
        at = int(falls.argmax()) + 1
        raise ArtifactError(f"{where}: expected ascending rows, got {ids[at]} after {ids[at - 1]}")
    if ids[0] < 0 or ids[-1] >= rows:
        wrong = ids[0] if ids[0] < 0 else ids[-1]
        raise ArtifactError(f"{where}: expected rows of 0 to {rows - 1}, got {wrong}")


def _bytes(tensor: MappedTable) -> Tensor:
    begin = tensor.byte_offset
    return tensor.memory[begin : begin + tensor.entry.stored_bytes]


def _id_dtype(table: StoredTable) -> np.dtype[np.unsignedinteger]:
    return np.dtype("<u4") if table.rows <= _MOST_SHORT_ROWS else np.dtype("<u8")
