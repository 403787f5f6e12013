"""Comparison of whole trained tables with a stored version."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from kernels.errors import InputError
from quant.sources.table_weight import TableWeight, find_key, find_weight
from quant.sources.weight_source import SourceError, WeightSource
from quant.stream import RowRange, encode_ranges
from sharded_infer.artifacts.artifact import Artifact
from sharded_infer.artifacts.mapped_id_maps import open_row_places
from sharded_infer.artifacts.mapped_tables import TablePiece, table_pieces
from sharded_infer.artifacts.table_memory import TableMemory
from sharded_infer.deltas.overlays import open_overlays, overlaid
from sharded_infer.errors import WeightsError
from sharded_infer.importing.changes.changed_rows import ChangedRows, Changes
from sharded_infer.inputs.placed_ids import PlacedIds
from sharded_infer.planning.plan import StoredTable
from sharded_infer.progress import Progress, no_progress
from sharded_infer.specs.model_spec import ModelSpec

COMPARING = "comparing rows"


def changed_weights(
    base: Artifact, source: WeightSource, progress: Progress = no_progress
) -> Changes:
    """Rows whose stored form differs from the base's, and new rows behind its tables.

    All rows are encoded; only those that differ are kept in memory.

    Args:
        source: trained weights of all tables.
        progress: called with the fp32 bytes compared.

    Raises:
        WeightsError: a table is missing, shorter than the base's or of another dim, or a row cannot
            be stored; names it.
    """
    spec, tables = base.manifest.model_spec(), base.manifest.stored_tables()
    pieces = overlaid(table_pieces(base, TableMemory.MAP), open_overlays(base))
    weights = {t.name: _weight(source, spec, tables[t.name]) for t in spec.tables}
    places = open_row_places(base)
    done, total = 0, sum(4 * one.rows * one.dim for one in weights.values())
    changes = {}
    for name, weight in weights.items():
        differing = []
        stored = _Stored(tables[name], pieces[name], places.get(name))
        for first, wrong, fp32_bytes in _compared(spec, stored, weight):
            differing.append(first + wrong)
            done += fp32_bytes
            progress(COMPARING, done, total)
        ids = np.concatenate(differing)
        if len(ids):
            changes[name] = ChangedRows(ids, _values(weight, ids))
    return changes


@dataclass(frozen=True, slots=True)
class _Stored:
    """The rows of a table as stored in a version, in their trained order."""

    table: StoredTable
    pieces: Sequence[TablePiece]
    placed: PlacedIds | None

    def read(self, first: int, last: int) -> torch.Tensor:
        """Rows `[first, last)` without those beyond the table: uint8 `[rows, row_bytes]`."""
        row_bytes = self.table.row_bytes
        ids = np.arange(first, max(first, min(last, self.table.rows)))
        rows = ids if self.placed is None else self.placed.places.rows(ids)
        found = torch.empty(len(ids), row_bytes, dtype=torch.uint8)
        for piece in self.pieces:
            end = piece.first_row + piece.rows
            at = torch.from_numpy(np.flatnonzero((rows >= piece.first_row) & (rows < end)))
            local = torch.from_numpy(rows)[at] - piece.first_row
            own = piece.own(piece.first_row, end, row_bytes)
            in_own = local < len(own)
            taken = torch.empty(len(at), row_bytes, dtype=torch.uint8)
            taken[in_own] = own[local[in_own]]
            if piece.overlay is not None:
                piece.overlay.patch(local, taken)
            found[at] = taken
        return found


def _compared(
    spec: ModelSpec, stored: _Stored, weight: TableWeight
) -> Iterator[tuple[int, NDArray[np.int64], int]]:
    table = stored.table
    whole = RowRange(
        table=table.name,
        weight=weight,
        row_format=table.row_format,
        first_row=0,
        last_row=weight.rows,
        clip=spec.quantization.clip,
        zero_nonfinite=spec.quantization.nonfinite == "zero",
    )
    first = 0
    try:
        for chunk in encode_ranges([whole]):
            last = first + len(chunk.stored)
            known = stored.read(first, last)
            differs = (chunk.stored[: len(known)] != known).any(1).numpy()
            wrong = np.concatenate([np.flatnonzero(differs), np.arange(len(known), last - first)])
            yield first, wrong, chunk.fp32_bytes
            first = last
    except InputError as error:
        raise WeightsError(str(error)) from error


def _weight(source: WeightSource, spec: ModelSpec, table: StoredTable) -> TableWeight:
    said = next(one for one in spec.tables if one.name == table.name)
    try:
        found = find_weight(
            source,
            table.name,
            said.weights,
            rows=_rows_of(source, table, said.weights),
            dim=table.dim,
            row_format=table.row_format,
        )
    except SourceError as error:
        raise WeightsError(str(error)) from error
    if found.rows < table.rows:
        raise WeightsError(
            f"table {table.name!r}: expected {table.rows} rows and more, as the base has, got "
            f"{found.rows} in {source.description}"
        )
    return found


def _rows_of(source: WeightSource, table: StoredTable, key: str | None) -> int:
    return source.shape(find_key(source, table.name, key))[0]


def _values(weight: TableWeight, ids: NDArray[np.int64]) -> torch.Tensor:
    ends = np.flatnonzero(np.diff(ids) != 1) + 1
    runs = np.split(ids, ends)
    return torch.cat([weight.read(int(run[0]), int(run[-1]) + 1) for run in runs])
