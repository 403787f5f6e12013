"""Row order by frequency: the most used rows come first.

An id map locates each row, so rows may be in any order. Tables without one store a place for each
id with the version. Adjacent hot rows occupy fewer pages and cache lines.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from quant.sources.arranged_rows import OrderedRows
from quant.sources.weight_source import WeightSource
from sharded_infer.errors import InputError, SpecError, WeightsError
from sharded_infer.importing.id_maps.id_map_source import Chunk, IdMapSource
from sharded_infer.inputs.model_input import JaggedBatch, ModelInput
from sharded_infer.publishing.format_selection import find_weights
from sharded_infer.quality.fp32_model import Fp32Model
from sharded_infer.specs.feature_statistics import HISTOGRAM_BINS, FeatureStatistics
from sharded_infer.specs.id_map_spec import MOST_MAPPED_ROWS, HashedRows, SharedRows
from sharded_infer.specs.model_spec import ModelSpec, TableSpec
from sharded_infer.specs.order_rows import OrderRows

Rows = NDArray[np.uint32]
Counts = NDArray[np.float64]
# Ends of the classes of about equally used rows, as shares of a table. They are dense where memory
# is likely to end.
_CLASS_ENDS = (*(2 ** -(n / 2) for n in range(1, 9)), *(2.0**-n for n in (5, 6, 7, 8, 10, 12)))
# Use counts of a table's rows, `[rows]`.
Frequencies = NDArray[np.integer] | NDArray[np.floating]


@dataclass(frozen=True, slots=True)
class RowOrder:
    """Inputs of a publication with ordered rows; `statistics` have the order's histograms.

    `orders` hold each reordered table's trained row in each place, uint32 `[rows]`, `keys` its
    weight.
    """

    spec: ModelSpec
    trained: WeightSource
    id_maps: Mapping[str, IdMapSource]
    statistics: Mapping[str, FeatureStatistics] | None
    orders: Mapping[str, Rows] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)

    @property
    def weights(self) -> WeightSource:
        """The weights with ordered rows."""
        if not self.orders:
            return self.trained
        by_key = {self.keys[name]: order for name, order in self.orders.items()}
        return OrderedRows(self.trained, by_key)

    @property
    def placed(self) -> dict[str, Rows]:
        """The orders of tables without id maps, which versions store."""
        return {table.name: self.orders[table.name] for table in self.spec.ordered_tables}

    def reordered(self, orders: Mapping[str, Rows], keys: Mapping[str, str]) -> "RowOrder":
        """With other orders of some tables; keys are those of their weights."""
        return replace(self, orders={**self.orders, **orders}, keys={**self.keys, **keys})

    def check_samples(self, samples: ModelInput | None) -> None:
        """Refuse, with InputError, samples whose ids are already rows, if rows are reordered."""
        if self.orders and samples is not None and samples.ids_checked:
            raise InputError(
                "samples: expected raw ids of tables whose rows are ordered (order_rows, or cut by "
                "a plan), got rows"
            )

    def trained_model(self, published: Fp32Model) -> Fp32Model:
        """The model with its rows in trained order."""
        if not self.orders:
            return published
        weights = {
            name: replace(weight, source=self.trained, rows=self.trained.shape(weight.key)[0])
            for name, weight in published.weights.items()
        }
        return published.changed(weights=weights)

    def trained_rows(self, samples: ModelInput) -> ModelInput:
        """Samples with published rows mapped to trained rows."""
        if not self.orders:
            return samples
        groups, features = [], self.spec.input_features
        for group in samples.groups:
            values, start = group.values.copy(), 0
            for number, count in zip(group.features, group.lengths.sum(axis=1), strict=True):
                part = slice(start, start + int(count))
                order = self.orders.get(features[number].table.name)
                if order is not None:
                    rows = values[part]
                    # In sequences -1 marks a missing row.
                    values[part] = np.where(rows < 0, rows, order[rows])
                start = part.stop
            groups.append(JaggedBatch(group.features, values, group.lengths, group.weights))
        return replace(samples, groups=tuple(groups))


def row_order(
    order: str,
    spec: ModelSpec,
    weights: WeightSource,
    id_maps: Mapping[str, IdMapSource],
    statistics: Mapping[str, FeatureStatistics] | None,
    frequencies: Mapping[str, Frequencies] | None = None,
) -> RowOrder:
    """The order requested of `publish`; arguments and errors as `_by_frequency`.

    Raises InputError for an unknown order, or for unused frequencies.
    """
    if order not in list(OrderRows):
        raise InputError(f"order_rows: expected {' or '.join(OrderRows)}, got {order!r:.80}")
    if ordered := [table.name for table in spec.ordered_tables]:
        raise SpecError(f"table {ordered[0]!r}: ordered: expected none: publishing says it")
    if order == OrderRows.AS_TRAINED:
        if frequencies:
            raise InputError(f"frequencies: expected none with order_rows {str(order)!r}")
        return RowOrder(spec, weights, id_maps, statistics)
    return _by_frequency(spec, weights, id_maps, statistics, frequencies or {})


def _by_frequency(
    spec: ModelSpec,
    weights: WeightSource,
    id_maps: Mapping[str, IdMapSource],
    statistics: Mapping[str, FeatureStatistics] | None,
    frequencies: Mapping[str, Frequencies],
) -> RowOrder:
    """Order the rows of each table with known use counts.

    Rows of about equal use (a class) keep their relative order: they are then read in few ranges,
    and their places take few bits. Tables without frequencies keep their order, as do those whose
    unknown ids read hashed rows, and those that share a weight. `spec` is that of `with_id_maps`;
    `frequencies` are of tables without id maps.

    Raises:
        InputError: frequencies of an unknown table, of one with an id map, or not one per row.
        SpecError: no table can be ordered.
        WeightsError: as `find_weights`; or a frequency is negative, or of an unknown row.
    """
    found = find_weights(spec, weights)
    uses = Counter(weight.key for weight in found.values())
    counts: dict[str, Counts] = {}
    for table in spec.mapped_tables:
        source = id_maps.get(table.name)
        # Two tables with one weight would each need their own order.
        can_move = not _is_hashed(table) and uses[found[table.name].key] == 1
        if source is not None and source.frequencies is not None and can_move:
            counts[table.name] = _counts(table, source)
    _check_frequencies(spec, frequencies)
    for name, of_rows in frequencies.items():
        if uses[found[name].key] == 1:
            counts[name] = of_rows.astype(np.float64)
    if not counts:
        raise SpecError(
            "order_rows: expected a table of which it is known how often its rows are used "
            "(frequencies; of one with an id map with_frequencies), which has a weight of its own "
            "and whose unknown ids read no hashed rows, got none"
        )
    orders = {name: order_by_use(of_rows) for name, of_rows in counts.items()}
    # Identity orders are not stored.
    orders = {
        name: order
        for name, order in orders.items()
        if name not in frequencies or (order != np.arange(len(order))).any()
    }
    places = {name: _places(order) for name, order in orders.items()}
    tables = tuple(
        _ordered(replace(t, format=found[t.name].stored or t.format), places[t.name])
        if t.name in places
        else t
        for t in spec.tables
    )
    histograms = {name: _histogram(counts[name][order]) for name, order in orders.items()}
    return RowOrder(
        spec=replace(spec, tables=tables),
        trained=weights,
        id_maps={
            name: _moved(source, places[name]) if name in places else source
            for name, source in id_maps.items()
        },
        statistics=_with_histograms(spec, statistics or {}, histograms),
        orders=orders,
        keys={name: found[name].key for name in orders},
    )


@dataclass(frozen=True, slots=True)
class _Moved:
    source: IdMapSource
    places: Rows

    def __call__(self) -> Iterator[Chunk]:
        for ids, rows in self.source.chunks(len(self.places)):
            yield ids, self.places[rows].astype(np.int64)


def _check_frequencies(spec: ModelSpec, frequencies: Mapping[str, Frequencies]) -> None:
    tables = {table.name: table for table in spec.tables}
    for name, of_rows in frequencies.items():
        table = tables.get(name)
        if table is None or table.id_map is not None:
            what = "no such table" if table is None else "it has an id map, which says them"
            raise InputError(f"frequencies: table {name!r}: {what}")
        if of_rows.shape != (table.rows,) or of_rows.dtype.kind not in "iuf":
            raise InputError(
                f"frequencies: table {name!r}: expected one number for each of {table.rows} rows, "
                f"got {of_rows.dtype} {list(of_rows.shape)}"
            )
        if not (np.isfinite(of_rows) & (of_rows >= 0)).all():
            raise InputError(f"frequencies: table {name!r}: expected finite numbers of 0 and more")
        if table.rows > MOST_MAPPED_ROWS:
            raise InputError(
                f"frequencies: table {name!r}: expected at most {MOST_MAPPED_ROWS} rows, got "
                f"{table.rows}"
            )


def _moved(source: IdMapSource, places: Rows) -> IdMapSource:
    return replace(source, read=_Moved(source, places), frequencies=None)


def _is_hashed(table: TableSpec) -> bool:
    return table.id_map is not None and isinstance(table.id_map.unknown, HashedRows)


def _counts(table: TableSpec, source: IdMapSource) -> Counts:
    """Use counts of rows; rows shared by unknown ids count as the hottest."""
    counts = np.zeros(table.rows)
    for rows, uses in source.frequencies() if source.frequencies is not None else ():
        if len(rows) and (rows.min() < 0 or rows.max() >= table.rows or uses.min() < 0):
            raise WeightsError(
                f"table {table.name!r}: {source.description}: expected frequencies of 0 at least, "
                f"of rows 0 to {table.rows - 1}, got {uses.min()} at least, of rows {rows.min()} "
                f"to {rows.max()}"
            )
        np.add.at(counts, rows, uses)
    unknown = None if table.id_map is None else table.id_map.unknown
    if isinstance(unknown, SharedRows):
        # Among the hottest, whatever their counts.
        counts[list(unknown.rows)] += counts.max()
    return counts


def order_by_use(counts: Counts) -> Rows:
    """The row at each place, uint32 `[rows]`, in up to 16 classes of falling counts `[rows]`."""
    classes = np.searchsorted(_bounds(counts), counts, side="right").astype(np.int8)
    return np.argsort(-classes, kind="stable").astype(np.uint32)


def _bounds(counts: Counts) -> Counts:
    last = len(counts) - np.ceil(np.array(_CLASS_ENDS) * len(counts)).astype(np.int64)
    ends = np.partition(counts, last)[last]
    # Unused rows form a class of their own.
    return np.unique(np.append(ends, counts[counts > 0].min(initial=np.inf)))


def _places(order: Rows) -> Rows:
    places = np.empty_like(order)
    places[order] = np.arange(len(order), dtype=np.uint32)
    return places


def _ordered(table: TableSpec, places: Rows) -> TableSpec:
    if table.id_map is None:
        return replace(table, ordered=True)
    if not isinstance(table.id_map.unknown, SharedRows):
        return table
    rows = tuple(int(places[row]) for row in table.id_map.unknown.rows)
    unknown = replace(table.id_map.unknown, rows=rows)
    return replace(table, id_map=replace(table.id_map, unknown=unknown))


def _histogram(counts: Counts) -> tuple[float, ...]:
    total = counts.sum()
    if not total:
        return ()
    bins = min(HISTOGRAM_BINS, len(counts))
    # As count_statistics: row r lies in bin r * bins // rows.
    firsts = -(-np.arange(bins) * len(counts) // bins)
    return tuple((np.add.reduceat(counts, firsts) / total).tolist())


def _with_histograms(
    spec: ModelSpec,
    statistics: Mapping[str, FeatureStatistics],
    histograms: Mapping[str, tuple[float, ...]],
) -> dict[str, FeatureStatistics]:
    found = {**spec.statistics, **statistics}
    largest: dict[str, TableSpec] = {}
    for feature in spec.table_features:
        known = largest.setdefault(feature.name, feature.table)
        # As statistics_of: of several tables, the largest.
        if feature.table.rows > known.rows:
            largest[feature.name] = feature.table
    for name, table in largest.items():
        if table.name in histograms:
            before = found.get(name, FeatureStatistics())
            found[name] = replace(before, histogram=histograms[table.name])
    return found
