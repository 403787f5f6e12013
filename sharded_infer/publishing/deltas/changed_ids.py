"""Changed rows of raw ids: row lookup in the base's id maps, and updated id maps.

A new id gets a new row behind the table's, or a free one of its part (`part_rows`). The id map of a
table that gains or loses ids is rewritten in the base's bucket order.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kernels.errors import InputError
from kernels.ids.index_writer import id_index_parts
from sharded_infer.artifacts.artifact import Artifact
from sharded_infer.artifacts.manifest import FileRecord
from sharded_infer.artifacts.mapped_id_maps import open_id_maps
from sharded_infer.errors import WeightsError
from sharded_infer.importing.changes.changed_rows import ChangedRows, Changes
from sharded_infer.inputs.id_map import IdMap
from sharded_infer.publishing.deltas.part_rows import in_each_part, rows_of_new
from sharded_infer.publishing.written_id_maps import write_index
from sharded_infer.specs.id_map_spec import HashedRows
from sharded_infer.specs.model_spec import ModelSpec

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ChangedIds:
    """Changes by rows; new ids with their rows and removed known ids, by table."""

    changes: Changes
    new: Mapping[str, tuple[Ids, Ids]] = field(default_factory=dict)
    removed: Mapping[str, Ids] = field(default_factory=dict)

    @property
    def tables(self) -> set[str]:
        """Tables whose id maps change."""
        return {*self.new, *self.removed}


def changed_ids(base: Artifact, changes: Changes) -> ChangedIds:
    """Resolve changed raw ids to rows; changes of tables without id maps stay as they are.

    Raises WeightsError if ids that share a row differ, a table without an id map loses ids, or a
    table whose unknown ids read hashed rows gains ids.
    """
    maps = open_id_maps(base, tables=set(changes))
    for table, changed in changes.items():
        if len(changed.removed) and table not in maps:
            raise WeightsError(
                f"changes: table {table!r}: ids are removed, but it has no id map: expected none"
            )
    by_rows, new, removed = {}, {}, {}
    for table, changed in changes.items():
        if table not in maps:
            by_rows[table] = changed
            continue
        by_rows[table], ids, rows = _by_rows(maps[table], changed)
        if len(ids):
            new[table] = ids, rows
        gone = changed.removed[maps[table].known(changed.removed) >= 0]
        if len(gone):
            removed[table] = gone
    return ChangedIds(by_rows, new, removed)


def write_id_maps(
    base: Artifact, changed: ChangedIds, spec: ModelSpec, staged: Path
) -> dict[str, FileRecord]:
    """Write the base-named id maps of tables that gain or lose ids, or gain rows.

    `spec` is the changed model's. Raises WeightsError if an id map cannot be written.
    """
    files, maps = base.manifest.id_maps or {}, open_id_maps(base)
    tables = {table.name: table for table in spec.tables}
    written: dict[str, FileRecord] = {}
    for table, name in files.items():
        if table not in changed.tables and tables[table].rows == maps[table].table.rows:
            continue
        chunks, count = _entries(maps[table], changed)
        (staged / name).parent.mkdir(parents=True, exist_ok=True)
        try:
            parts = id_index_parts(chunks, count, tables[table].rows, folder=staged)
            written |= write_index(staged, name, tables[table], parts)
        except InputError as error:
            raise WeightsError(f"changes: table {table!r}: {error}") from error
    return written


def _by_rows(id_map: IdMap, changed: ChangedRows) -> tuple[ChangedRows, Ids, Ids]:
    table = id_map.table
    found = id_map.known(changed.ids)
    is_new = found < 0
    ids = changed.ids[is_new]
    if len(ids) and isinstance(id_map.unknown, HashedRows):
        raise WeightsError(
            f"changes: table {table.name!r}: id {ids[0]} is new, but a hash chooses the rows of "
            "unknown ids among all rows: publish the table whole"
        )
    rows = rows_of_new(id_map, ids, changed.removed)
    found[is_new] = rows
    positions, changed_rows = in_each_part(id_map, found)
    order = np.argsort(changed_rows, kind="stable")
    ordered = changed_rows[order]
    twice = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(twice):
        one, other = changed.ids[positions[order[twice[0] : twice[0] + 2]]]
        raise WeightsError(
            f"changes: table {table.name!r}: ids {one} and {other} have the same row, "
            f"{ordered[twice[0]]}: expected one of them"
        )
    by_rows = replace(changed.taken(positions), ids=changed_rows, removed=np.empty(0, np.int64))
    return by_rows, ids, rows


def _entries(id_map: IdMap, changed: ChangedIds) -> tuple[Iterator[tuple[Ids, Ids]], int]:
    table = id_map.table.name
    removed = np.sort(changed.removed.get(table, np.empty(0, np.int64)))
    none = np.empty(0, np.int64)
    new = changed.new.get(table, (none, none))

    def chunks() -> Iterator[tuple[Ids, Ids]]:
        for ids, rows in id_map.index.entries():
            kept = ~np.isin(ids, removed) if len(removed) else slice(None)
            yield ids[kept], rows[kept]
        yield new

    return chunks(), id_map.index.count - len(removed) + len(new[0])
