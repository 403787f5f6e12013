"""A model on devices: its plan's tables placed, its towers loaded, its engines around them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter

import torch
from torch import Tensor

from sharded_infer.batch import JaggedBatch, ModelInput
from sharded_infer.batch_sizes import padded_size, padded_sizes
from sharded_infer.device.buckets import bucket_of, device_buckets
from sharded_infer.device.engine_memory import EngineShape, Towers
from sharded_infer.device.engine_set import Backends, EngineSet
from sharded_infer.device.rank_tables import PlacedShard, place_ranks
from sharded_infer.lookup_route import LookupWork, StepWork
from sharded_infer.model_engine import RanBatch
from sharded_infer.plan import Plan, StoredTable
from sharded_infer.progress import Progress, no_progress
from sharded_infer.sizes import size_text
from sharded_infer.spec import ModelSpec
from sharded_infer.statistics import FeatureStatistics
from sharded_infer.table_pieces import TablePiece

# Ids that slots hold: so many times as many as the statistics say, and of each bag at least these.
_HEADROOM = 4
_LEAST_IDS = 16


@dataclass(frozen=True, slots=True)
class ModelParts:
    """A model, as it is stored.

    Attributes:
        spec: what it is.
        plan: where its shards go; at least one rank is a card.
        tables: as stored, by name.
        pieces: where their rows are on the host.
        weighted: whether ids of its requests usually have weights: such batches are captured too.
    """

    spec: ModelSpec
    plan: Plan
    tables: Mapping[str, StoredTable]
    pieces: Mapping[str, Sequence[TablePiece]]
    weighted: bool = False


class DeviceEngine:
    """A model's batches on devices; see `ModelEngine`.

    Attributes:
        waits: true: a batch's thread waits for devices.
        set: its engines.
        placed: its tables' shards.
    """

    waits = True

    def __init__(
        self,
        parts: ModelParts,
        towers: Towers,
        *,
        devices: Sequence[torch.device | None],
        backends: Backends,
        max_batch: int,
        progress: Progress = no_progress,
    ) -> None:
        """Copies the tables, puts a tower on each device, captures every bucket.

        Args:
            parts: the model.
            towers: how towers are made.
            devices: of each rank; None: pinned memory of the host.
            backends: what runs lookups, and where.
            max_batch: samples of a usual batch, at most.
            progress: told how far it is.

        Raises:
            CapacityError: a device has too little memory; names it, with figures.
        """
        spec = self._spec = parts.spec
        self.placed: list[PlacedShard] = place_ranks(
            parts.plan, parts.tables, parts.pieces, devices, backends.runtime, progress
        )
        self.set = EngineSet(
            spec,
            self.placed,
            devices,
            towers,
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
        """As `ModelEngine.device_slots`."""
        return sum(engine.shape.slots for engine in self.set.engines)

    @property
    def backends(self) -> Mapping[str, str]:
        """As `ModelEngine.backends`."""
        return {shard.table.row_format.value: self._name for shard in self.placed}

    @property
    def run_size(self) -> Callable[[int], int]:
        """As `ModelEngine.run_size`."""
        return partial(_run_size, self.set.engines[0].shape.buckets)

    def run_sizes(self, largest: int) -> Sequence[int]:
        """As `ModelEngine.run_sizes`: graphs have their own, and are there already."""
        return padded_sizes(largest)

    def memory_report(self) -> Sequence[str]:
        """As `ModelEngine.memory_report`; what other versions hold is in the second number."""
        return [
            f"{device}: {memory} foretold, {size_text(self._runtime.allocated(device))} held by "
            "this process"
            for device, memory in self.set.memory.items()
        ]

    def run(self, batch: ModelInput) -> RanBatch:
        """As `ModelEngine.run`."""
        began = perf_counter()
        checked = self.set.checked(batch)
        written = perf_counter()
        scores = self.set.run(checked)
        return RanBatch(
            tuple(scores),
            written - began,
            perf_counter() - written,
            checked.ids_outside,
            self._work(checked),
        )

    def embeddings(self, batch: ModelInput) -> Tensor:
        """As `ModelEngine.embeddings`."""
        found = self.set.engines[0].embeddings(self.set.checked(batch))
        padded = torch.zeros(padded_size(batch.batch_size), found.shape[1])
        padded[: batch.batch_size] = found
        return padded

    def score(self, dense: Sequence[Tensor], embeddings: Tensor) -> tuple[Tensor, ...]:
        """As `ModelEngine.score`."""
        return tuple(self.set.engines[0].score(dense, embeddings))

    def _work(self, batch: ModelInput) -> LookupWork:
        """Rows by rank: exact where a rank has all rows of a table, else its share of them.

        Seconds are not known: all ranks' lookups are in one graph.
        """
        counts = [0] * len(self._spec.features)
        saved = 0
        for group in batch.groups:
            lengths = group.lengths.sum(axis=1)
            for feature, count in zip(group.features, lengths.tolist(), strict=True):
                counts[feature] = count
            saved += _saved(batch, group)
        steps: list[StepWork] = []
        for rank, shares in self._ranks.items():
            rows = [counts[feature] * share for feature, share, _ in shares]
            size = sum(count * row for count, (_, _, row) in zip(rows, shares, strict=True))
            steps.append((rank, round(sum(rows)), round(size), 0.0))
        return LookupWork(steps, saved)


def _run_size(buckets: tuple[int, ...], batch: int) -> int:
    return bucket_of(batch, buckets) or batch


def ids_of_a_sample(spec: ModelSpec) -> int:
    """Ids that slots hold for each sample.

    Args:
        spec: the model; its statistics count.
    """
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
    """By rank, of each shard and feature: the feature, the share of its ids, a row's bytes."""
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


def _saved(batch: ModelInput, group: JaggedBatch) -> int:
    """Rows that were not looked up because samples share a group's bags."""
    if group.batch_size == batch.batch_size:
        return 0
    if batch.repeats is None:
        return len(group.values) * (batch.batch_size - 1)
    return int(group.lengths.sum(axis=0) @ (batch.repeats - 1))
