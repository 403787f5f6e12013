"""Changed rows, encoded as a version stores its tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.row_overlay import OverlayLayer
from kernels.stored_rows import decode
from kernels.wording import did_you_mean
from quant.error_meter import ErrorMeter
from quant.report import TableReport
from quant.sources.table_weight import TableWeight
from quant.sources.weight_source import ShapedSource, TensorSource
from quant.stream import RowRange, encode_ranges
from sharded_infer.artifacts.mapped_tables import TablePiece
from sharded_infer.errors import InputError, WeightsError
from sharded_infer.importing.changes.changed_rows import ChangedRows, Changes
from sharded_infer.inputs.placed_ids import PlacedIds
from sharded_infer.planning.plan import StoredTable
from sharded_infer.progress import ENCODING, Progress
from sharded_infer.specs.model_spec import ModelSpec, TableSpec

_CHANGED = "changed rows, in the base's format"


@dataclass(frozen=True, slots=True)
class EncodedChanges:
    """Changed rows as stored: `spec` includes new rows, `reports` cover changed rows only.

    `numbers` are the same rows as trained, fp32 `[M, dim]`, by table.
    """

    spec: ModelSpec
    layers: dict[str, OverlayLayer]
    numbers: dict[str, Tensor]
    reports: tuple[TableReport, ...]

    @property
    def stored_bytes(self) -> int:
        """Bytes of the changed rows."""
        return sum(layer.stored.numel() for layer in self.layers.values())


def encode_changes(
    spec: ModelSpec,
    tables: Mapping[str, StoredTable],
    changes: Changes,
    places: Mapping[str, PlacedIds],
    progress: Progress,
) -> EncodedChanges:
    """Encode changed rows in the formats of the base's tables.

    `changes` are of rows; rows from a table's end on are new, without gaps. `places` locates the
    rows of the base's ordered tables; new rows follow. Raises WeightsError, naming the table and
    the row, if a table, row, format or value is unsuitable.
    """
    specs = {table.name: table for table in spec.tables}
    for name in changes:
        if name not in tables:
            raise WeightsError(
                f"changes: table {name!r}: no such table{did_you_mean(name, tables)}"
            )
    wanted = {name: changed for name, changed in changes.items() if len(changed.ids)}
    layers: dict[str, OverlayLayer] = {}
    numbers: dict[str, Tensor] = {}
    reports, grown = [], {}
    for done, (name, changed) in enumerate(wanted.items()):
        progress(ENCODING, done, len(wanted))
        table = tables[name]
        ordered = changed.taken(np.argsort(changed.ids))
        rows = _rows_with_new(table, ordered.ids)
        _check_finite(spec, table, ordered)
        if name in places:
            ordered = _placed(ordered, places[name])
        numbers[name] = _weight(table, ordered).read(0, len(ordered.ids))
        layers[name], report = _encoded(spec, table, ordered)
        reports.append(report)
        if rows > table.rows:
            grown[name] = _grown(specs[name], rows)
    progress(ENCODING, len(wanted), len(wanted))
    new_tables = tuple(grown.get(table.name, table) for table in spec.tables)
    return EncodedChanges(
        replace(spec, tables=new_tables) if grown else spec, layers, numbers, tuple(reports)
    )


def _grown(table: TableSpec, rows: int) -> TableSpec:
    id_map = table.id_map
    return replace(table, rows=rows, id_map=id_map and replace(id_map, partition=None))


class ChangedSource(ShapedSource):
    """Values, fp32: changed rows as trained, others as stored in the base; new rows count."""

    def __init__(
        self,
        tables: Mapping[str, StoredTable],
        pieces: Mapping[str, Sequence[TablePiece]],
        changes: EncodedChanges,
    ) -> None:
        self._tables, self._pieces, self._changes = tables, pieces, changes
        rows = {table.name: table.rows for table in changes.spec.tables}
        shapes = {name: (rows[name], table.dim) for name, table in tables.items()}
        super().__init__("the base and its changes", shapes)

    def weights(self) -> dict[str, TableWeight]:
        """All tables, by name."""
        return {
            name: TableWeight(self, name, self.shape(name)[0], table.dim)
            for name, table in self._tables.items()
        }

    def _rows(self, key: str, start: int, stop: int) -> Tensor:
        return torch.cat([self._row(key, row) for row in range(start, stop)])

    def _row(self, key: str, row: int) -> Tensor:
        layer, table = self._changes.layers.get(key), self._tables[key]
        at = -1 if layer is None else int(np.searchsorted(layer.ids, row))
        if layer is not None and at < len(layer.ids) and layer.ids[at] == row:
            return self._changes.numbers[key][at : at + 1]
        pieces = self._pieces[key]
        piece = next(p for p in pieces if p.first_row <= row < p.first_row + p.rows)
        stored = piece.read(row, row + 1, table.row_bytes)
        return decode(table.row_format, stored, table.dim)


def _rows_with_new(table: StoredTable, ids: NDArray[np.int64]) -> int:
    if ids[0] < 0:
        raise WeightsError(
            f"changes: table {table.name!r}: expected rows of 0 and more, got {ids[0]}"
        )
    new = ids[np.searchsorted(ids, table.rows) :]
    missing = np.flatnonzero(new != np.arange(table.rows, table.rows + len(new)))
    if len(missing):
        raise WeightsError(
            f"changes: table {table.name!r}: row {new[missing[0]]} is new, behind "
            f"{table.rows} rows, and row {table.rows + missing[0]} is not there"
        )
    return table.rows + len(new)


def _weight(table: StoredTable, changed: ChangedRows) -> TableWeight:
    rows = changed.rows
    if rows is None:
        raise WeightsError(f"changes: table {table.name!r}: ids without rows")
    width = table.dim if changed.row_format is None else table.row_bytes
    if changed.row_format not in (None, table.row_format):
        raise WeightsError(
            f"changes: table {table.name!r}: expected {table.row_format} rows, as its base has, "
            f"or numbers, got {changed.row_format} rows"
        )
    if rows.shape[1] != width:
        unit = "numbers" if changed.row_format is None else "bytes"
        raise WeightsError(
            f"changes: table {table.name!r}: expected rows of {width} {unit}, got {rows.shape[1]}"
        )
    source = TensorSource({table.name: rows}, "changes")
    return TableWeight(source, table.name, len(rows), table.dim, changed.row_format)


def _check_finite(spec: ModelSpec, table: StoredTable, changed: ChangedRows) -> None:
    if spec.quantization.nonfinite == "zero":
        return
    finite = torch.isfinite(_weight(table, changed).read(0, len(changed.ids))).all(1)
    if not bool(finite.all()):
        wrong = changed.ids[int((~finite).nonzero()[0])]
        raise WeightsError(f"changes: table {table.name!r}: row {wrong} has NaN or infinity")


def _placed(changed: ChangedRows, placed: PlacedIds) -> ChangedRows:
    rows = placed.places.rows(changed.ids)
    order = np.argsort(rows)
    return replace(changed.taken(order), ids=rows[order])


def _encoded(
    spec: ModelSpec, table: StoredTable, changed: ChangedRows
) -> tuple[OverlayLayer, TableReport]:
    whole = RowRange(
        table=table.name,
        weight=_weight(table, changed),
        row_format=table.row_format,
        first_row=0,
        last_row=len(changed.ids),
        clip=spec.quantization.clip,
        zero_nonfinite=spec.quantization.nonfinite == "zero",
    )
    meter = ErrorMeter(table.name, table.row_format, table.dim, _CHANGED)
    stored, first = torch.empty(len(changed.ids), table.row_bytes, dtype=torch.uint8), 0
    try:
        for chunk in encode_ranges([whole]):
            stored[first : first + len(chunk.stored)] = chunk.stored
            first += len(chunk.stored)
            meter.add(chunk.errors)
    except InputError as error:
        raise WeightsError(f"changes: {error} (counted among the changed rows)") from error
    return OverlayLayer(changed.ids, stored), meter.report()
