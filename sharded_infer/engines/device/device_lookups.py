"""Fused lookups of one device for one tower, and the destinations of their columns.

features on the tower's device, not split by rows:  directly into the tower's input
all others:  into the device's part; the tower's device then copies the part to its columns, or
             adds it if the feature's rows are split across ranks
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from kernels.gpu.device_tables import DeviceTables
from sharded_infer.engines.device.rank_tables import PlacedShard
from sharded_infer.lookups.columns import SplitFeatures, column_runs, first_columns
from sharded_infer.specs.model_spec import ModelSpec


class Lookup(Protocol):
    """One prepared fused lookup."""

    def pooled(
        self, values: Tensor, offsets: Tensor, *, out: Tensor, weights: Tensor | None = None
    ) -> None:
        """Starts pooling every bag into columns of `out`, without waiting."""
        ...


# Prepares a lookup of tables on a device. The numbers are the expected ids per bag of each feature;
# they affect speed but not results.
LookupMaker = Callable[[DeviceTables, torch.device, Sequence[float]], Lookup]


class DeviceLookups:
    """One device's lookups for a tower.

    Attributes:
        features: spec positions of the features whose ids the device needs, ascending.
        part_width: columns of the device's part; 0 if it has no part.
        runs: destinations of the part's columns in the tower's input.
    """

    def __init__(
        self,
        spec: ModelSpec,
        shards: Sequence[PlacedShard],
        *,
        device: torch.device,
        split: SplitFeatures,
        has_tower: bool,
        make: LookupMaker,
    ) -> None:
        self.device = device
        by_table: dict[str, list[int]] = defaultdict(list)
        for index, feature in enumerate(spec.features):
            by_table[feature.table.name].append(index)
        used = [(index, shard) for shard in shards for index in by_table[shard.table.name]]
        used.sort(key=lambda pair: (pair[0], pair[1].first_column, pair[1].first_row))
        self.features = tuple(sorted({index for index, _ in used}))
        self._positions = {index: position for position, index in enumerate(self.features)}
        self._starts = first_columns(spec)
        self._spec, self._split = spec, frozenset(split.features)
        direct = [pair for pair in used if has_tower and pair[0] not in self._split]
        apart = [pair for pair in used if not has_tower or pair[0] in self._split]
        self._direct = self._grouped(
            direct, [self._starts[index] + shard.first_column for index, shard in direct], make
        )
        sources, width = [], 0
        for _, shard in apart:
            sources.append(width)
            width += shard.columns
        self.part_width = width
        self._apart = self._grouped(apart, sources, make)
        self.runs = column_runs(
            (self._starts[index] + shard.first_column, shard.columns, index in self._split)
            for index, shard in apart
        )

    def pool(
        self,
        values: Tensor,
        offsets: Tensor,
        *,
        pooled: Tensor | None,
        part: Tensor | None,
        weights: Tensor | None = None,
    ) -> None:
        """Starts all lookups.

        Args:
            values: `[N]`, ids of `features`, feature-major, on the device.
            offsets: int32 `[F * B + 1]`, start of each bag.
            pooled: fp32 `[B, width]`, the tower's input; None on other devices.
            part: fp32 `[B, part_width]`, or None.
            weights: fp32 `[N]`.
        """
        if pooled is not None:
            for lookup in self._direct:
                lookup.pooled(values, offsets, out=pooled, weights=weights)
        if part is not None:
            for lookup in self._apart:
                lookup.pooled(values, offsets, out=part, weights=weights)

    def _grouped(
        self,
        used: Sequence[tuple[int, PlacedShard]],
        columns: Sequence[int],
        make: LookupMaker,
    ) -> list[Lookup]:
        groups: dict[int, list[tuple[int, PlacedShard, int]]] = defaultdict(list)
        for (index, shard), column in zip(used, columns, strict=True):
            groups[shard.memory.data_ptr()].append((index, shard, column))
        return [
            make(self._tables(group), self.device, [self._usual_ids(*pair[:2]) for pair in group])
            for group in groups.values()
        ]

    def _usual_ids(self, index: int, shard: PlacedShard) -> float:
        """Expected ids of a feature's bag that are in a shard's rows."""
        statistics = self._spec.statistics.get(self._spec.features[index].name)
        usual = 1.0 if statistics is None else statistics.pooling_factor
        return usual * shard.rows / shard.table.rows

    def _tables(self, group: Sequence[tuple[int, PlacedShard, int]]) -> DeviceTables:
        shards = [shard for _, shard, _ in group]
        return DeviceTables(
            memory=shards[0].memory,
            row_format=shards[0].table.row_format,
            byte_offsets=tuple(shard.byte_offset for shard in shards),
            row_strides=tuple(shard.row_stride for shard in shards),
            rows=tuple(shard.rows for shard in shards),
            dims=tuple(shard.columns for shard in shards),
            means=tuple(
                index not in self._split and self._spec.features[index].table.pooling == "mean"
                for index, _, _ in group
            ),
            first_rows=tuple(shard.first_row for shard in shards),
            columns=tuple(column for _, _, column in group),
            positions=tuple(self._positions[index] for index, _, _ in group),
        )
