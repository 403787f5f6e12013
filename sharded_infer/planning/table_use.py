"""Use of a model's tables by a batch: input of the planner's costs and budgets."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sharded_infer.planning.id_map_memory import map_bytes_of
from sharded_infer.planning.plan import StoredTable
from sharded_infer.specs.feature_statistics import FeatureStatistics
from sharded_infer.specs.id_map_spec import HashedRows
from sharded_infer.specs.model_spec import ModelSpec, TableSpec


@dataclass(frozen=True, slots=True)
class TableUse:
    """A table, and its use by a batch.

    Attributes:
        features: statistics of each feature that looks rows up in it.
        map_bytes: of its id map; 0: it has none.
        unpooled: those of `features` that are in a sequence.
        in_parts: hosts of parts of its rows map their evenly hashed ids.
    """

    table: StoredTable
    features: tuple[FeatureStatistics, ...] = (FeatureStatistics(),)
    map_bytes: int = 0
    unpooled: tuple[FeatureStatistics, ...] = ()
    in_parts: bool = False

    @property
    def pooling_factor(self) -> float:
        """Ids for each sample, over all its features."""
        return sum(feature.pooling_factor for feature in self.features)

    @property
    def vectors(self) -> float:
        """Vectors that a lookup returns for each sample: of pooled features, and rows."""
        pooled = len(self.features) - len(self.unpooled)
        return pooled + sum(feature.pooling_factor for feature in self.unpooled)


def table_uses(
    spec: ModelSpec, statistics: Mapping[str, FeatureStatistics] | None = None
) -> tuple[TableUse, ...]:
    """A model's tables and their use; a sequence without statistics has its maximum length."""
    known = {**spec.statistics, **(statistics or {})}
    features: dict[str, list[FeatureStatistics]] = {table.name: [] for table in spec.tables}
    unpooled: dict[str, list[FeatureStatistics]] = {table.name: [] for table in spec.tables}
    for feature in spec.table_features:
        used = known.get(feature.name, FeatureStatistics())
        if feature.sequence is not None:
            longest = spec.sequences[feature.sequence].max_length
            ids = used.pooling_factor if feature.name in known else longest
            used = replace(used, pooling_factor=min(ids, longest))
            unpooled[feature.table.name].append(used)
        features[feature.table.name].append(used)
    mapped = {table.name for table in spec.mapped_tables}
    return tuple(
        TableUse(
            StoredTable(t.name, t.rows, t.dim, spec.row_format(t)),
            tuple(features[t.name]),
            map_bytes_of(t.rows) if t.name in mapped else 0,
            tuple(unpooled[t.name]),
            is_partitionable(t),
        )
        for t in spec.tables
    )


def is_partitionable(table: TableSpec) -> bool:
    """True if rows may be partitioned by the hashes of their ids.

    False if MPZCH's hash chooses rows for unknown ids: it may choose any of a bucket.
    """
    id_map = table.id_map
    is_indexed = id_map is not None and id_map.hashed is None
    return is_indexed and not isinstance(id_map and id_map.unknown, HashedRows)
