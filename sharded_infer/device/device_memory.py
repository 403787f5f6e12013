"""What a model takes of each device, foretold from its plan.

    tables       of the device's ranks, rows padded
    inputs       slots * what a batch of the largest bucket sends
    room         4 bytes * largest bucket * (the tower's sparse input + parts, where they are made
                 and where they arrive)
    tower        its weights
    workspace    of matrix products on the engine's compute stream
    activations  of the largest bucket, and the sparse input twice more, for shared bags

Not counted: what CUDA takes for itself (its context, kernels' code), what the allocator leaves
between tensors, and cuBLAS' workspaces for the default stream, on which a tower is tried, and for
threads that run batches which no graph fits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import torch

from sharded_infer.device.engine_memory import EngineMemory, EngineShape, Towers
from sharded_infer.device.rank_tables import PlacedShard
from sharded_infer.device.runtime import Runtime
from sharded_infer.errors import CapacityError
from sharded_infer.sizes import size_text


@dataclass(slots=True)
class DeviceMemory:
    """Bytes of one device; see the module.

    Attributes:
        tables: of its ranks.
        inputs: of the slots of all engines.
        room: of all engines.
        tower: weights.
        workspace: of its matrix products.
        activations: of a batch.
    """

    tables: int = 0
    inputs: int = 0
    room: int = 0
    tower: int = 0
    workspace: int = 0
    activations: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return sum(getattr(self, field.name) for field in fields(self))

    def __str__(self) -> str:
        """The sum and its parts, for people."""
        parts = [f"{field.name} {size_text(getattr(self, field.name))}" for field in fields(self)]
        return f"{size_text(self.total)} ({', '.join(parts)})"


def table_memory(
    placed: Sequence[PlacedShard], devices: Sequence[torch.device | None]
) -> dict[torch.device, DeviceMemory]:
    """What the tables take of each device.

    Args:
        placed: all shards.
        devices: of each rank; None: the host's memory, which is not counted.
    """
    found = {device: DeviceMemory() for device in devices if device is not None}
    seen: set[int] = set()
    for shard in placed:
        device, address = devices[shard.rank], shard.memory.data_ptr()
        if device is not None and address not in seen:
            seen.add(address)
            found[device].tables += shard.memory.numel()
    return found


def add_engine(
    found: Mapping[torch.device, DeviceMemory], memory: EngineMemory, shape: EngineShape
) -> None:
    """Adds what an engine takes for its batches.

    Args:
        found: by device, added to.
        memory: the engine's.
        shape: how large it is.
    """
    largest = shape.buckets[-1]
    for device, size in memory.slot_bytes(largest, shape.ids).items():
        found[device].inputs += shape.slots * size
    for device, size in memory.room_bytes(largest).items():
        found[device].room += size


def add_tower(
    found: Mapping[torch.device, DeviceMemory],
    memory: EngineMemory,
    towers: Towers,
    shape: EngineShape,
) -> None:
    """Adds what an engine's tower takes.

    Args:
        found: by device, added to.
        memory: the engine's.
        towers: says what its tower takes.
        shape: how large the engine is.
    """
    largest, parts = shape.buckets[-1], memory.parts
    weights, activations = towers.bytes_of(parts.tower, largest)
    home = found[parts.lookups[0].device]
    home.tower += weights
    home.workspace += memory.runtime.workspace_bytes
    # Where samples share bags: each sample's bags, and what the tower then reads.
    home.activations += activations + 2 * 4 * largest * parts.width


def check_room(found: Mapping[torch.device, DeviceMemory], runtime: Runtime) -> None:
    """Refuses what is foretold where a device has too little left; tables and towers are there.

    Raises:
        CapacityError: names the device, what is wanted and what it has.
    """
    for device, memory in found.items():
        runtime.release_cached(device)
        wanted = memory.inputs + memory.room + memory.workspace + memory.activations
        free = runtime.free(device)
        if free is not None and wanted > free:
            raise CapacityError(
                f"{device}: out of memory: batches need {size_text(wanted)}, {size_text(free)} "
                f"free; the model takes {memory}"
            )
