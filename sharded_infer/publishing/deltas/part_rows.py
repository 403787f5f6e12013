"""Rows for new ids of a partitioned table, and row changes that apply to each part."""

import logging

import numpy as np
from numpy.typing import NDArray

from kernels.ids.partition import parts_of
from sharded_infer.inputs.id_map import IdMap
from sharded_infer.specs.id_map_spec import IdPartition, SharedRows

_log = logging.getLogger("sharded_infer")
Ids = NDArray[np.int64]


def rows_of_new(id_map: IdMap, ids: Ids, removed: Ids) -> Ids:
    """Rows for new ids, int64 `[N]`: behind the table's, or free ones of their parts.

    If a part has too few (rows of `removed` are free), all go behind a then unpartitioned table.
    """
    behind = np.arange(id_map.table.rows, id_map.table.rows + len(ids))
    if id_map.partition is None or not len(ids):
        return behind
    ends = [*id_map.partition.first_rows, id_map.table.rows]
    free = np.flatnonzero(_are_free(id_map, id_map.partition, removed))
    firsts = np.searchsorted(free, ends)
    parts = parts_of(ids, id_map.partition.first_hashes)
    order = np.argsort(parts, kind="stable")
    counts = np.bincount(parts, minlength=len(ends) - 1)
    if (counts > np.diff(firsts)).any():
        _log.warning(
            "table %r: a part of its rows has no free row for new ids: from this version on its "
            "ids are mapped by fronts, until it is published whole",
            id_map.table.name,
        )
        return behind
    rows = np.empty(len(ids), np.int64)
    rows[order] = np.concatenate(
        [free[first : first + count] for first, count in zip(firsts, counts, strict=False)]
    )
    return rows


def in_each_part(id_map: IdMap, rows: Ids) -> tuple[Ids, Ids]:
    """Copies of changed rows in each other part, for rows that unknown ids share.

    Returns positions in `rows` and the target rows, both int64 `[M]`.
    """
    partition, shared = id_map.partition, _shared(id_map)
    every = np.arange(len(rows))
    if partition is None or not shared:
        return every, rows
    firsts = np.array(partition.first_rows)
    parts = np.searchsorted(firsts, rows, "right") - 1
    local = rows - firsts[parts]
    again = np.flatnonzero(local < shared)
    others = [np.delete(firsts, parts[at]) + local[at] for at in again]
    return (
        np.concatenate([every, np.repeat(again, len(firsts) - 1)]),
        np.concatenate([rows, *others]),
    )


def _shared(id_map: IdMap) -> int:
    return max(id_map.unknown.rows) + 1 if isinstance(id_map.unknown, SharedRows) else 0


def _are_free(id_map: IdMap, partition: IdPartition, removed: Ids) -> NDArray[np.bool_]:
    free = np.ones(id_map.table.rows, np.bool_)
    for _, rows in id_map.index.entries():
        free[rows] = False
    known = id_map.known(removed)
    free[known[known >= 0]] = True
    for first in partition.first_rows:
        free[first : first + _shared(id_map)] = False
    return free
