"""A model on devices: the tables of its plan, its towers and their engines."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from time import perf_counter

import torch
from torch import Tensor

from sharded_infer.artifacts.mapped_tables import TablePiece
from sharded_infer.byte_sizes import size_text
from sharded_infer.engines.device.batch_memory import EngineShape
from sharded_infer.engines.device.buckets import bucket_of, device_buckets
from sharded_infer.engines.device.engine_set import Backends, EngineSet
from sharded_infer.engines.device.rank_tables import PlacedShard, place_ranks
from sharded_infer.engines.device.tower_step import TowerMaker
from sharded_infer.engines.model_engine import BatchResult
from sharded_infer.errors import InternalError
from sharded_infer.inputs.id_policy import InputPolicy
from sharded_infer.inputs.model_input import JaggedBatch, ModelInput
from sharded_infer.inputs.placed_ids import RowMap
from sharded_infer.lookups.lookup_work import LookupWork, StepWork
from sharded_infer.planning.plan import Plan, StoredTable
from sharded_infer.progress import Progress, no_progress
from sharded_infer.specs.feature_statistics import FeatureStatistics
from sharded_infer.specs.model_spec import ModelSpec
from sharded_infer.towers.batch_sizes import padded_size, padded_sizes

# Capacity of a slot: this multiple of the expected ids of each bag, but at least `_LEAST_IDS`.
_HEADROOM = 4
_LEAST_IDS = 16


@dataclass(frozen=True, slots=True)
class ModelParts:
    """A stored model.

    Attributes:
        plan: at least one rank is on a GPU.
        pieces: the rows of each table in host memory.
        weighted: True if requests usually have weights; then batches with weights are captured too.
        id_maps: by table, in host memory.
    """

    spec: ModelSpec
    plan: Plan
    tables: Mapping[str, StoredTable]
    pieces: Mapping[str, Sequence[TablePiece]]
    weighted: bool = False
    id_maps: Mapping[str, RowMap] = field(default_factory=dict)


class DeviceEngine:
    """Runs a model's batches on devices; see `ModelEngine`.

    `placed` are all shards in the memory of their ranks, `set` the engines of the towers.
    """

    waits = True
    # Every bucket has its memory.
    checked_samples = sys.maxsize

    def __init__(
        self,
        parts: ModelParts,
        make_tower: TowerMaker,
        *,
        devices: Sequence[torch.device | None],
        backends: Backends,
        max_batch: int,
        progress: Progress = no_progress,
    ) -> None:
        """Copies the tables, creates a tower on each device and captures every bucket.

        Args:
            devices: device of each rank; None is the host's pinned memory.
            max_batch: largest usual batch size, in samples.

        Raises:
            CapacityError: a device has too little memory; names it and gives the figures.
        """
        spec = self._spec = parts.spec
        self._policy = InputPolicy(spec, parts.id_maps)
        for table in spec.mapped_tables:
            if table.name not in parts.id_maps:
                raise InternalError(f"table {table.name!r}: its id map was not opened")
        self.placed: list[PlacedShard] = place_ranks(
            parts.plan, parts.tables, parts.pieces, devices, backends.runtime, progress
        )
        self.set = EngineSet(
            spec,
            self.placed,
            devices,
            make_tower,
            shape=EngineShape(
                device_buckets(max_batch),
                ids=max_batch * ids_of_a_sample(spec),
                weighted=parts.weighted,
            ),
            backends=backends,
            progress=progress,
        )
        self._name, self._runtime = backends.name, backends.runtime
        self._ranks = _rank_rows(spec, self.placed)

    @property
    def device_slots(self) -> int:
        """See `ModelEngine.device_slots`."""
        return sum(engine.shape.slots for engine in self.set.engines)

    @property
    def backends(self) -> Mapping[str, str]:
        """See `ModelEngine.backends`."""
        return {shard.table.row_format.value: self._name for shard in self.placed}

    @property
    def run_size(self) -> Callable[[int], int]:
        """See `ModelEngine.run_size`."""
        return partial(bucket_of, buckets=self.set.engines[0].shape.buckets)

    def run_sizes(self, largest: int) -> Sequence[int]:
        """See `ModelEngine.run_sizes`; graphs have other sizes and are already captured."""
        return padded_sizes(largest)

    def memory_report(self) -> Sequence[str]:
        """See `ModelEngine.memory_report`; the second number includes other versions."""
        return [
            f"{device}: {memory} estimated, {size_text(self._runtime.allocated(device))} held by "
            "this process"
            for device, memory in self.set.memory.items()
        ]

    def run(
        self, batch: ModelInput, deadline: float = inf, *, may_default: bool = False
    ) -> BatchResult:
        """See `ModelEngine.run`; all rows are here."""
        began = perf_counter()
        checked = self._policy.apply(batch)
        written = perf_counter()
        scores = self.set.run(checked)
        return BatchResult(
            tuple(scores),
            written - began,
            perf_counter() - written,
            checked.ids_outside,
            self._work(checked),
        )

    def embeddings(self, batch: ModelInput) -> Tensor:
        """See `ModelEngine.embeddings`."""
        embeddings = self.set.engines[0].embeddings(self._policy.apply(batch))
        padded = torch.zeros(padded_size(batch.batch_size), embeddings.shape[1])
        padded[: batch.batch_size] = embeddings
        return padded

    def score(self, dense: Sequence[Tensor], embeddings: Tensor) -> tuple[Tensor, ...]:
        """See `ModelEngine.score`."""
        return tuple(self.set.engines[0].score(dense, embeddings))

    def _work(self, batch: ModelInput) -> LookupWork:
        """Rows by rank, exact for tables on one rank and estimated for split or replicated ones.

        Seconds are unknown (0) because graphs contain all lookups of a device.
        """
        counts = [0] * len(self._spec.features)
        saved = 0
        for group in batch.groups:
            lengths = group.lengths.sum(axis=1)
            for feature, count in zip(group.features, lengths.tolist(), strict=True):
                counts[feature] = count
            saved += _rows_saved(group, batch)
        steps: list[StepWork] = []
        for rank, shares in self._ranks.items():
            rows = [counts[feature] * share for feature, share, _ in shares]
            size = sum(count * row for count, (_, _, row) in zip(rows, shares, strict=True))
            steps.append((rank, round(sum(rows)), round(size), 0.0))
        return LookupWork(steps, saved)


def ids_of_a_sample(spec: ModelSpec) -> int:
    """Capacity of a slot for each sample, in ids."""
    return sum(
        max(
            _LEAST_IDS,
            round(_HEADROOM * spec.statistics.get(f.name, FeatureStatistics()).pooling_factor),
        )
        for f in spec.features
    )


def _rank_rows(
    spec: ModelSpec, placed: Sequence[PlacedShard]
) -> dict[int, list[tuple[int, float, int]]]:
    """By rank, for each shard and feature: (feature, share of its ids, bytes of a row)."""
    ranks: dict[int, list[tuple[int, float, int]]] = {}
    replicas: dict[str, int] = {}
    for shard in placed:
        if shard.replicated:
            replicas[shard.table.name] = replicas.get(shard.table.name, 0) + 1
    for shard in placed:
        row_bytes = shard.table.row_format.row_bytes(shard.columns)
        share = shard.rows / shard.table.rows / replicas.get(shard.table.name, 1)
        for index, feature in enumerate(spec.features):
            if feature.table.name == shard.table.name:
                ranks.setdefault(shard.rank, []).append((index, share, row_bytes))
    return ranks


def _rows_saved(group: JaggedBatch, batch: ModelInput) -> int:
    """Rows not looked up because samples share a bag."""
    ids, repeats = group.lengths.sum(axis=0), batch.repeats
    if len(ids) == batch.batch_size:
        return 0
    if repeats is None:
        return int(ids.sum()) * (batch.batch_size - 1)
    return int(ids @ (repeats - 1))
