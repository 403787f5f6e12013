"""One engine for each device's tower, over the same ranks; batches are spread over the towers."""

import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from sharded_infer.engines.device.batch_memory import EngineMemory, EngineParts, EngineShape
from sharded_infer.engines.device.device_lookups import DeviceLookups, LookupMaker
from sharded_infer.engines.device.memory_estimate import add_engine, check_room, table_memory
from sharded_infer.engines.device.rank_tables import PlacedShard
from sharded_infer.engines.device.runtime.runtime import Runtime
from sharded_infer.engines.device.tower_engine import TowerEngine
from sharded_infer.engines.device.tower_step import TowerMaker
from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.lookups.columns import first_columns, split_features
from sharded_infer.progress import Progress, no_progress
from sharded_infer.specs.model_spec import ModelSpec

_INT32_ROWS = 2**31


@dataclass(frozen=True, slots=True)
class Backends:
    """The runtime of the devices, and the lookups that run there."""

    runtime: Runtime
    make_lookup: LookupMaker
    name: str


class EngineSet:
    """A model's engines; thread-safe.

    Attributes:
        devices: the towers' devices, in order.
        memory: estimated memory of the model on each device.
    """

    def __init__(
        self,
        spec: ModelSpec,
        placed: Sequence[PlacedShard],
        devices: Sequence[torch.device | None],
        make_tower: TowerMaker,
        *,
        shape: EngineShape,
        backends: Backends,
        progress: Progress = no_progress,
    ) -> None:
        """Creates a tower and an engine for every device.

        Args:
            devices: device of each rank; at least one is not None. The tables of a rank without a
                device are in pinned memory, which each tower's device reads directly.
            progress: called with the number of captures done.

        Raises:
            CapacityError: a device has too little memory.
        """
        self._spec = spec
        self.devices = tuple(dict.fromkeys(device for device in devices if device is not None))
        split = {shard.table.name for shard in placed if not shard.holds_all_rows}
        self._split = split_features(spec, split)
        memories = [
            EngineMemory(self._parts(home, placed, devices, make_tower, backends), backends.runtime)
            for home in self.devices
        ]
        self.memory = table_memory(placed, devices)
        for memory in memories:
            add_engine(self.memory, memory, shape)
        check_room(self.memory, backends.runtime)
        self.engines = [TowerEngine(memory, shape, progress) for memory in memories]
        self._choosing = threading.Lock()
        self._in_flight = [0] * len(self.engines)
        self._turn = itertools.count()

    def _parts(
        self,
        home: torch.device,
        placed: Sequence[PlacedShard],
        devices: Sequence[torch.device | None],
        make_tower: TowerMaker,
        backends: Backends,
    ) -> EngineParts:
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
            tower=make_tower(home),
            split=self._split,
            columns=np.array(first_columns(spec), np.int64),
            dense_widths=tuple(spec.dense.inputs.values()),
            id_dtype=torch.int32 if narrow else torch.int64,
        )

    def run(self, batch: ModelInput) -> list[NDArray[np.float32]]:
        """Scores a batch, ids already checked, on the tower with the fewest batches in flight.

        Returns fp32 `[B]` or `[B, K]` for each output, in the spec's order. Raises CapacityError if
        the batch fits no slot, and there is no memory for a larger one.
        """
        with self._choosing:
            turn = next(self._turn)
            count = len(self.engines)
            # Ties are broken in turn.
            chosen = min(range(count), key=lambda i: (self._in_flight[i], (i - turn) % count))
            self._in_flight[chosen] += 1
        try:
            return self.engines[chosen].run(batch)
        finally:
            with self._choosing:
                self._in_flight[chosen] -= 1


def _shards_for(
    device: torch.device,
    home: torch.device,
    placed: Sequence[PlacedShard],
    devices: Sequence[torch.device | None],
) -> list[PlacedShard]:
    """The shards that a device looks up for a tower on `home`.

    The tower's device reads its own copy of replicated tables, and all shards in host memory.
    """
    used, replicas = [], set()
    for shard in placed:
        where = devices[shard.rank]
        if shard.replicated:
            if device == home and where == home and shard.table.name not in replicas:
                replicas.add(shard.table.name)
                used.append(shard)
        elif (where or home) == device:
            used.append(shard)
    return used
