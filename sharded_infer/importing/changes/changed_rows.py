"""Changed rows of tables, and how successive or parallel changes combine."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.row_format import RowFormat
from kernels.wording import counted
from sharded_infer.errors import WeightsError
from sharded_infer.importing.id_maps.id_map_source import Ids


@dataclass(frozen=True, slots=True)
class ChangedRows:
    """Changed and new rows of one table, each id once.

    Attributes:
        ids: int64 `[M]`: rows of the table, or raw ids if the table has an id map.
        values: fp32 `[M, dim]` as trained; None if `stored` is set or there are no ids.
        stored: uint8 `[M, row_bytes]`, rows in `row_format`, copied unchanged.
        removed: int64 `[K]`: raw ids to delete from the table's id map, if present.
    """

    ids: Ids
    values: Tensor | None = None
    stored: Tensor | None = None
    row_format: RowFormat | None = None
    removed: Ids = field(default_factory=lambda: np.empty(0, np.int64))

    @property
    def rows(self) -> Tensor | None:
        """`values` or `stored`, whichever is set."""
        return self.values if self.stored is None else self.stored

    def taken(self, positions: NDArray[np.int64] | NDArray[np.bool_]) -> "ChangedRows":
        """A subset of the ids with their rows, and all of `removed`."""
        chosen = torch.from_numpy(positions)
        return ChangedRows(
            self.ids[positions],
            None if self.values is None else self.values[chosen],
            None if self.stored is None else self.stored[chosen],
            self.row_format,
            self.removed,
        )


# By table.
Changes = Mapping[str, ChangedRows]


def check_changes(changes: Changes, where: str) -> Changes:
    """Check changes for internal consistency; a version's shapes are not checked.

    Raises WeightsError, naming the table: wrong shape or dtype, a repeated id, or an id both
    changed and removed. `where` is their origin, for messages.
    """
    for table, changed in changes.items():
        name = f"{where}: table {table[:200]!r}"
        _check_rows(name, changed)
        for what, ids in (("ids", changed.ids), ("removed", changed.removed)):
            if ids.dtype != np.int64 or ids.ndim != 1:
                raise WeightsError(
                    f"{name}: {what}: expected int64 [N], got {ids.dtype} {list(ids.shape)}"
                )
            ordered = np.sort(ids)
            again = ordered[1:][ordered[1:] == ordered[:-1]]
            if len(again):
                raise WeightsError(f"{name}: {what}: id {again[0]} comes twice")
        both = np.intersect1d(changed.ids, changed.removed, assume_unique=True)
        if len(both):
            raise WeightsError(f"{name}: id {both[0]} is changed and removed")
    return changes


def merged(earlier: Changes, later: Changes) -> Changes:
    """Merge two successive changes.

    Later rows win. A removed id that returns is no longer removed; one removed later is no longer
    changed, and stays removed even if only the earlier changes introduced it.

    Raises WeightsError, naming a table and both row formats, if its rows have two.
    """
    return dict(earlier) | {
        table: _merged(f"table {table!r}", earlier[table], changed) if table in earlier else changed
        for table, changed in later.items()
    }


def joined(parts: Mapping[str, Changes]) -> Changes:
    """Join simultaneous changes of several ranks or files, by name.

    Raises WeightsError, naming the table, the id and a shard, if two shards disagree about an id or
    a table's rows have two formats.
    """
    whole: dict[str, ChangedRows] = {}
    for where, changes in parts.items():
        for table, changed in changes.items():
            if table in whole:
                name = f"{where}: table {table[:200]!r}"
                _check_agreement(name, whole[table], changed)
                whole[table] = _merged(name, whole[table], changed)
            else:
                whole[table] = changed
    return whole


def last_of_each(ids: Ids) -> NDArray[np.int64]:
    """The last position of each id, int64 `[M]`, ascending."""
    _, backwards = np.unique(ids[::-1], return_index=True)
    return np.sort(len(ids) - 1 - backwards)


def _check_rows(name: str, changed: ChangedRows) -> None:
    rows, count = changed.rows, len(changed.ids)
    if changed.values is not None and changed.stored is not None:
        raise WeightsError(f"{name}: expected values or stored rows, got both")
    if (changed.stored is None) != (changed.row_format is None):
        raise WeightsError(f"{name}: expected stored rows with their format, got one of the two")
    if rows is None:
        if count:
            raise WeightsError(f"{name}: expected rows for {counted(count, 'id')}, got none")
        return
    dtype = torch.float32 if changed.stored is None else torch.uint8
    if rows.dtype != dtype or rows.ndim != 2 or rows.shape[0] != count or not rows.shape[1]:
        raise WeightsError(
            f"{name}: expected {dtype} [{count}, N], one row for each id, got {rows.dtype} "
            f"{list(rows.shape)}"
        )


def _merged(name: str, earlier: ChangedRows, later: ChangedRows) -> ChangedRows:
    kept = earlier.taken(~np.isin(earlier.ids, np.concatenate([later.ids, later.removed])))
    still_removed = earlier.removed[~np.isin(earlier.removed, later.ids)]
    removed = np.union1d(still_removed, later.removed)
    # Removals alone have no rows, and no row format.
    with_rows = [one for one in (kept, later) if one.rows is not None]
    if len(with_rows) == 2 and _form(kept) != _form(later):
        raise WeightsError(
            f"{name}: expected {_form(kept)} as in earlier changes, got {_form(later)}"
        )
    last = with_rows[-1] if with_rows else later
    rows = torch.cat([one.rows for one in with_rows if one.rows is not None]) if with_rows else None
    return ChangedRows(
        np.concatenate([kept.ids, later.ids]),
        rows if last.stored is None else None,
        rows if last.stored is not None else None,
        last.row_format,
        removed,
    )


def _form(changed: ChangedRows) -> str:
    width = 0 if changed.rows is None else changed.rows.shape[1]
    if changed.row_format is None:
        return f"rows of {counted(width, 'number')}"
    return f"{changed.row_format} rows of {counted(width, 'byte')}"


def _check_agreement(name: str, one: ChangedRows, other: ChangedRows) -> None:
    both = np.concatenate(
        [np.intersect1d(one.ids, other.removed), np.intersect1d(one.removed, other.ids)]
    )
    if len(both):
        raise WeightsError(f"{name}: id {both[0]} is removed by one part and changed by another")
    ids, at, there = np.intersect1d(one.ids, other.ids, assume_unique=True, return_indices=True)
    if not len(ids) or one.rows is None or other.rows is None or _form(one) != _form(other):
        return
    first, second = one.rows[torch.from_numpy(at)], other.rows[torch.from_numpy(there)]
    differs = (first.view(torch.uint8) != second.view(torch.uint8)).any(dim=1)
    if bool(differs.any()):
        wrong = ids[int(differs.nonzero()[0])]
        raise WeightsError(f"{name}: id {wrong} has another row in another part")
