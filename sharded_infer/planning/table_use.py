"""How a batch uses a model's tables: what the planner's costs and budgets are computed from."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sharded_infer.planning.id_map_memory import map_bytes_of
from sharded_infer.planning.plan import StoredTable
from sharded_infer.specs.feature_statistics import FeatureStatistics
from sharded_infer.specs.id_map_spec import HashedRows
from sharded_infer.specs.model_spec import ModelSpec, TableSpec


@dataclass(frozen=True, slots=True)
class TableUse:
    """A table, and how a batch uses it.

    Attributes:
        features: statistics of each feature that looks rows up in it.
        map_bytes: of its id map; 0: it has none.
        unpooled: those of `features` that are in a sequence.
        in_parts: whether hosts of parts of its rows map their ids, which a hash spreads evenly.
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
    """A model's tables and how they are used.

    Args:
        spec: its own statistics are used if none are given. A sequence without any is as long as it
            may be.
    """
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
    """Whether rows may stand in parts by the hashes of their ids.

    Not those that a hash of MPZCH chooses for unknown ids: it may choose any of a bucket.
    """
    id_map = table.id_map
    is_indexed = id_map is not None and id_map.hashed is None
    return is_indexed and not isinstance(id_map and id_map.unknown, HashedRows)
