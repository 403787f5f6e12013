"""Rows that differ between two checkpoints."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from kernels.wording import counted
from quant.sources.checkpoint import open_weights, weights_of
from quant.sources.table_weight import TableWeight, find_key, find_weight
from quant.sources.weight_source import SourceError, WeightSource
from sharded_infer.errors import WeightsError
from sharded_infer.importing.changes.changed_rows import ChangedRows, Changes, check_changes
from sharded_infer.specs.model_spec import ModelSpec, TableSpec

_CHUNK_BYTES = 8 * 2**20  # of fp32 rows, read at once of either


def changes_between(old: object, new: object, spec: ModelSpec) -> Changes:
    """Rows with any differing bit, and rows appended to a table.

    Checkpoints are compared one range of rows at a time; only differing rows stay in memory.

    Args:
        old: weights as `publish` takes them, or a checkpoint's path; likewise `new`.
        spec: names the tables to compare; their row counts may differ from it.

    Returns:
        Changes of each changed table, as stored if both sides are quantized.

    Raises:
        WeightsError: a table is missing, shrank, has another dim or row format, or has an id map;
            names the table and both.
    """
    try:
        sources = _source(old), _source(new)
        found = {table.name: _changed(spec, table, *sources) for table in spec.tables}
    except SourceError as error:
        raise WeightsError(str(error)) from error
    changes = {table: changed for table, changed in found.items() if len(changed.ids)}
    return check_changes(changes, sources[1].description)


def _source(weights: object) -> WeightSource:
    return open_weights(Path(weights)) if isinstance(weights, str | Path) else weights_of(weights)


def _changed(
    spec: ModelSpec, table: TableSpec, old: WeightSource, new: WeightSource
) -> ChangedRows:
    if table.id_map is not None:
        raise WeightsError(
            f"table {table.name!r}: has an id map, so that one row may be another id's in each "
            "checkpoint; give its changed rows by their raw ids"
        )
    before, after = _weight(spec, table, old), _weight(spec, table, new)
    if after.rows < before.rows:
        raise WeightsError(
            f"table {table.name!r}: expected at least the {counted(before.rows, 'row')} of "
            f"{old.description}, got {after.rows} in {new.description}"
        )
    if before.stored is not after.stored:
        raise WeightsError(
            f"table {table.name!r}: expected rows of one form, got {before.stored or 'numbers'} in "
            f"{old.description} and {after.stored or 'numbers'} in {new.description}"
        )
    ids, rows = [np.empty(0, np.int64)], []
    for start, changed in _differing(before, after):
        positions = changed.nonzero().squeeze(1)
        if len(positions):
            ids.append(positions.numpy() + start)
            stop = start + len(changed)
            rows.append(_rows(after, start, stop)[positions])
    if not rows:
        return ChangedRows(ids[0])
    joined = torch.cat(rows)
    if after.stored is None:
        return ChangedRows(np.concatenate(ids), joined)
    return ChangedRows(np.concatenate(ids), stored=joined, row_format=after.stored)


def _weight(spec: ModelSpec, table: TableSpec, source: WeightSource) -> TableWeight:
    key = find_key(source, table.name, table.weights)
    shape, fixed = source.shape(key), spec.fixed_format(table)
    return find_weight(
        source,
        table.name,
        key,
        rows=shape[0] if shape else 0,
        dim=table.dim,
        row_format=None if fixed is None else fixed[0],
    )


def _differing(before: TableWeight, after: TableWeight) -> Iterator[tuple[int, Tensor]]:
    """Yield the first row of each range, and bool `[N]`: its changed or new rows."""
    size = max(1, _CHUNK_BYTES // (4 * after.dim))
    for start in range(0, before.rows, size):
        stop = min(start + size, before.rows)
        one, other = (_rows(weight, start, stop) for weight in (before, after))
        integers = torch.uint8 if after.stored else torch.int32
        yield start, (one.view(integers) != other.view(integers)).any(dim=1)
    for start in range(before.rows, after.rows, size):
        yield start, torch.ones(min(size, after.rows - start), dtype=torch.bool)


def _rows(weight: TableWeight, start: int, stop: int) -> Tensor:
    if weight.stored is not None:
        return weight.read_stored(start, stop)
    return weight.read(start, stop)
