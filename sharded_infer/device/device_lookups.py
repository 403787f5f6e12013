"""The fused lookups of one device for one tower, and where their columns go.

on the tower's device, of features with all rows in one place:  straight into the tower's input
anything else:  into the device's part, then, on the tower's device, copied to its columns, or
                added where a feature's rows are shared by ranks
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from kernels.device_tables import DeviceTables, OutOfRange
from sharded_infer.device.rank_tables import PlacedShard
from sharded_infer.spec import ModelSpec


class Lookup(Protocol):
    """One fused lookup, prepared."""

    def pooled(
        self, values: Tensor, offsets: Tensor, *, out: Tensor, weights: Tensor | None = None
    ) -> None:
        """Pools every bag into columns of `out`; starts the work and does not wait for it."""
        ...


# Prepares a lookup of tables, to be started on a device; the numbers are ids of a usual bag of each
# feature, which change speed, never results.
LookupMaker = Callable[[DeviceTables, torch.device, Sequence[float]], Lookup]


@dataclass(frozen=True, slots=True)
class ColumnRun:
    """Neighbouring columns of a part that belong together.

    Attributes:
        column: their first column in the tower's input.
        source: in the part.
        width: how many.
        added: whether they are added to what is there.
    """

    column: int
    source: int
    width: int
    added: bool


@dataclass(frozen=True, slots=True)
class SplitFeatures:
    """Features whose rows are shared by ranks.

    Attributes:
        features: their positions in the spec, ascending.
        columns: (first column, width) of each in the tower's input.
        means: those of them that are averaged; their sums are divided when all are added.
    """

    features: tuple[int, ...]
    columns: tuple[tuple[int, int], ...]
    means: tuple[int, ...]


def first_columns(spec: ModelSpec) -> list[int]:
    """Where each feature's columns begin in the tower's input, and their end."""
    starts = [0]
    for feature in spec.features:
        starts.append(starts[-1] + feature.table.dim)
    return starts


def split_features(spec: ModelSpec, placed: Sequence[PlacedShard]) -> SplitFeatures:
    """Finds the features whose rows are shared by ranks.

    Args:
        spec: the model.
        placed: every shard.
    """
    names = {shard.table.name for shard in placed if not shard.holds_all_rows}
    starts = first_columns(spec)
    found = [i for i, feature in enumerate(spec.features) if feature.table.name in names]
    return SplitFeatures(
        features=tuple(found),
        columns=tuple((starts[i], spec.features[i].table.dim) for i in found),
        means=tuple(i for i in found if spec.features[i].table.pooling == "mean"),
    )


class DeviceLookups:
    """What one device looks up for a tower.

    Attributes:
        device: where.
        features: positions in the spec of the features whose ids it needs, ascending.
        part_width: columns of its part; 0: it has none.
        runs: where the part's columns go.
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
        """Groups the shards by the memory they lie in.

        Args:
            spec: the model.
            shards: those that the device is to read.
            device: where lookups run.
            split: of all shards of the plan.
            has_tower: whether the tower is on this device.
            make: prepares lookups.
        """
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
        self.runs = self._joined(apart, sources)

    @property
    def launches(self) -> int:
        """Fused lookups of a batch."""
        return len(self._direct) + len(self._apart)

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
            values: ids of `features`, feature-major, on the device.
            offsets: int32 `[F * B + 1]`, where each bag begins.
            pooled: fp32 `[B, width]`, the tower's input; None: the tower is elsewhere.
            part: fp32 `[B, part_width]`; None: there is none.
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
        """One lookup for each memory that the shards lie in."""
        groups: dict[int, list[tuple[int, PlacedShard, int]]] = defaultdict(list)
        for (index, shard), column in zip(used, columns, strict=True):
            groups[shard.memory.data_ptr()].append((index, shard, column))
        return [
            make(self._tables(group), self.device, [self._usual_ids(*pair[:2]) for pair in group])
            for group in groups.values()
        ]

    def _usual_ids(self, index: int, shard: PlacedShard) -> float:
        """Ids of a usual bag of a feature whose rows a shard has."""
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
            # Ids are checked before: one that is not here is another rank's.
            policies=(OutOfRange.ELSEWHERE,) * len(group),
            first_rows=tuple(shard.first_row for shard in shards),
            columns=tuple(column for _, _, column in group),
            positions=tuple(self._positions[index] for index, _, _ in group),
        )

    def _joined(
        self, apart: Sequence[tuple[int, PlacedShard]], sources: Sequence[int]
    ) -> tuple[ColumnRun, ...]:
        runs: list[ColumnRun] = []
        for (index, shard), source in zip(apart, sources, strict=True):
            column = self._starts[index] + shard.first_column
            run = ColumnRun(column, source, shard.columns, index in self._split)
            last = runs[-1] if runs else None
            if (
                last is not None
                and last.added == run.added
                and last.column + last.width == column
                and last.source + last.width == source
            ):
                runs[-1] = ColumnRun(last.column, last.source, last.width + run.width, run.added)
            else:
                runs.append(run)
        return tuple(runs)
