"""A plan's ranks on devices, a tower on each device, and batches spread over the towers."""

import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from kernels.bags import Bags
from sharded_infer.arrays import tensor_of
from sharded_infer.batch import JaggedBatch, ModelInput
from sharded_infer.device.device_lookups import (
    DeviceLookups,
    LookupMaker,
    first_columns,
    split_features,
)
from sharded_infer.device.device_memory import add_engine, add_tower, check_room, table_memory
from sharded_infer.device.engine import Engine
from sharded_infer.device.engine_memory import EngineMemory, EngineParts, EngineShape, Towers
from sharded_infer.device.rank_tables import PlacedShard
from sharded_infer.device.runtime import Runtime
from sharded_infer.id_policy import IdPolicy
from sharded_infer.progress import Progress, no_progress
from sharded_infer.spec import ModelSpec

_INT32_ROWS = 2**31
# Which features a request shares varies by client, not by request; the bound holds hostile ones.
_MOST_POLICIES = 64


@dataclass(frozen=True, slots=True)
class Backends:
    """What runs lookups, and where.

    Attributes:
        runtime: the devices.
        make_lookup: prepares a fused lookup.
        name: what reports call it.
    """

    runtime: Runtime
    make_lookup: LookupMaker
    name: str


class EngineSet:
    """A model's engines; any thread may call.

    Attributes:
        devices: where towers are, in order.
        engines: one a tower.
        memory: what all of it takes of each device, as foretold.
    """

    def __init__(
        self,
        spec: ModelSpec,
        placed: Sequence[PlacedShard],
        devices: Sequence[torch.device | None],
        towers: Towers,
        *,
        shape: EngineShape,
        backends: Backends,
        progress: Progress = no_progress,
    ) -> None:
        """Puts a tower on every device, and an engine around it.

        Args:
            spec: the model.
            placed: its shards, on their ranks.
            devices: of each rank; None: its tables are in pinned memory, which every tower's
                device reads for itself. At least one is a device.
            towers: how to make them.
            shape: of each engine.
            backends: what runs lookups.
            progress: told the graphs captured.

        Raises:
            CapacityError: a device has no memory for it.
        """
        self._spec = spec
        self._policies: dict[tuple[int, ...], IdPolicy] = {}
        self.devices = tuple(dict.fromkeys(device for device in devices if device is not None))
        self._split = split_features(spec, placed)
        memories = [
            EngineMemory(self._parts(home, placed, devices, towers, backends), backends.runtime)
            for home in self.devices
        ]
        self.memory = table_memory(placed, devices)
        for memory in memories:
            add_engine(self.memory, memory, shape)
            add_tower(self.memory, memory, towers, shape)
        check_room(self.memory, backends.runtime)
        self.engines = [Engine(memory, shape, progress) for memory in memories]
        self._choosing = threading.Lock()
        self._in_flight = [0] * len(self.engines)
        self._turn = itertools.count()

    def _parts(
        self,
        home: torch.device,
        placed: Sequence[PlacedShard],
        devices: Sequence[torch.device | None],
        towers: Towers,
        backends: Backends,
    ) -> EngineParts:
        """What the engine of a tower on `home` runs."""
        spec = self._spec
        order = [home, *(device for device in self.devices if device != home)]
        lookups = [
            DeviceLookups(
                spec,
                shards,
                device=device,
                split=self._split,
                has_tower=device == home,
                make=backends.make_lookup,
            )
            for device in order
            if (shards := _shards_for(device, home, placed, devices)) or device == home
        ]
        narrow = all(table.rows <= _INT32_ROWS for table in spec.tables)
        return EngineParts(
            lookups=lookups,
            tower=towers.make(home),
            split=self._split,
            columns=np.array(first_columns(spec), np.int64),
            dense_widths=tuple(spec.dense.inputs.values()),
            output_widths=towers.output_widths,
            id_dtype=torch.int32 if narrow else torch.int64,
        )

    def run(self, batch: ModelInput) -> list[NDArray[np.float32]]:
        """Scores a batch on the tower that has the least to do.

        Args:
            batch: its ids are checked; see `checked`.

        Returns:
            fp32 `[B]` or `[B, K]` of each output, in the spec's order.

        Raises:
            CapacityError: it is larger than what was prepared for, and there is no memory for it.
        """
        with self._choosing:
            turn = next(self._turn)
            count = len(self.engines)
            # Those with equally much take turns.
            chosen = min(range(count), key=lambda i: (self._in_flight[i], (i - turn) % count))
            self._in_flight[chosen] += 1
        try:
            return self.engines[chosen].run(batch)
        finally:
            with self._choosing:
                self._in_flight[chosen] -= 1

    def checked(self, batch: ModelInput) -> ModelInput:
        """The batch with its features' policies applied to ids outside their tables.

        Raises:
            RequestError: an id is outside a table whose policy is `error`.
        """
        if batch.ids_checked:
            return batch
        outside, groups = batch.ids_outside, []
        for group in batch.groups:
            weights = None if group.weights is None else tensor_of(group.weights)
            bags = Bags(tensor_of(group.values), tensor_of(group.lengths), weights)
            bags, found = self._policy(group.features).apply(bags)
            outside += found
            groups.append(
                JaggedBatch.trusted(
                    group.features,
                    bags.values.numpy(),
                    bags.lengths.numpy(),
                    None if bags.weights is None else bags.weights.numpy(),
                )
            )
        return ModelInput(
            batch.batch_size, tuple(groups), batch.dense, True, outside, batch.repeats
        )

    def _policy(self, features: tuple[int, ...]) -> IdPolicy:
        policy = self._policies.get(features)
        if policy is None:
            policy = IdPolicy([self._spec.features[feature] for feature in features])
            if len(self._policies) < _MOST_POLICIES:
                self._policies[features] = policy
        return policy


def _shards_for(
    device: torch.device,
    home: torch.device,
    placed: Sequence[PlacedShard],
    devices: Sequence[torch.device | None],
) -> list[PlacedShard]:
    """What a device looks up for a tower on `home`.

    A replicated table is read on the tower's own device, the host's memory by the tower's.
    """
    found, replicas = [], set()
    for shard in placed:
        where = devices[shard.rank]
        if shard.replicated:
            if device == home and where == home and shard.table.name not in replicas:
                replicas.add(shard.table.name)
                found.append(shard)
        elif (where or home) == device:
            found.append(shard)
    return found
