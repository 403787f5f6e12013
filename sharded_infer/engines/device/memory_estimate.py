"""Estimate of the memory that a model takes on each device.

    tables       tables of the device's ranks, with padded rows
    inputs       slots * inputs of a batch of the largest bucket
    buffers      4 bytes * largest bucket * (width of the tower's sparse input, twice if lookups
                 overlap towers, + widths of the parts, both on their own devices and on the
                 tower's)
    tower        weights
    workspace    workspace of matrix products on the engine's compute stream
    activations  activations of the largest bucket, and two copies of the sparse input for shared
                 bags

Not counted: memory of CUDA itself (context, kernel code), allocator fragmentation, and cuBLAS
workspaces of the default stream, on which a new tower is tested, and of threads without a graph.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import torch

from sharded_infer.byte_sizes import size_text
from sharded_infer.engines.device.batch_memory import EngineMemory, EngineShape
from sharded_infer.engines.device.input_layout import input_bytes
from sharded_infer.engines.device.rank_tables import PlacedShard
from sharded_infer.engines.device.runtime.runtime import Runtime
from sharded_infer.errors import CapacityError


@dataclass(slots=True)
class DeviceMemory:
    """Estimated bytes on one device; see the module."""

    tables: int = 0
    inputs: int = 0
    buffers: int = 0
    tower: int = 0
    workspace: int = 0
    activations: int = 0

    @property
    def total(self) -> int:
        """Sum of all fields."""
        return sum(getattr(self, field.name) for field in fields(self))

    def __str__(self) -> str:
        """Total and parts, for messages."""
        parts = [f"{field.name} {size_text(getattr(self, field.name))}" for field in fields(self)]
        return f"{size_text(self.total)} ({', '.join(parts)})"


def table_memory(
    placed: Sequence[PlacedShard], devices: Sequence[torch.device | None]
) -> dict[torch.device, DeviceMemory]:
    """Bytes of tables on each device, by each rank's device; None, the host, is not counted."""
    estimates = {device: DeviceMemory() for device in devices if device is not None}
    seen: set[int] = set()
    for shard in placed:
        device, address = devices[shard.rank], shard.memory.data_ptr()
        if device is not None and address not in seen:
            seen.add(address)
            estimates[device].tables += shard.memory.numel()
    return estimates


def add_engine(
    estimates: Mapping[torch.device, DeviceMemory],
    memory: EngineMemory,
    shape: EngineShape,
) -> None:
    """Adds the memory of an engine's inputs, work buffers and tower."""
    largest, parts = shape.buckets[-1], memory.parts
    home = estimates[parts.lookups[0].device]
    home.buffers += 4 * largest * parts.width * shape.tower_inputs
    for streams in memory.all_streams:
        device = estimates[streams.lookups.device]
        part_bytes = 4 * largest * streams.lookups.part_width
        device.inputs += shape.slots * input_bytes(streams.shape, largest, shape.ids)
        device.buffers += part_bytes
        if device is not home:
            home.buffers += part_bytes
    home.tower += parts.tower.memory_bytes
    home.workspace += memory.runtime.workspace_bytes
    # If samples share bags: the expanded bags, and the tower's input made from them.
    home.activations += parts.tower.activation_bytes(largest) + 2 * 4 * largest * parts.width


def check_room(estimates: Mapping[torch.device, DeviceMemory], runtime: Runtime) -> None:
    """Checks that each device has room for the estimate; tables and towers are allocated already.

    Raises CapacityError, with both figures, if a device has too little free memory.
    """
    for device, memory in estimates.items():
        runtime.release_cached(device)
        wanted = memory.inputs + memory.buffers + memory.workspace + memory.activations
        free = runtime.free(device)
        if free is not None and wanted > free:
            raise CapacityError(
                f"{device}: out of memory: batches need {size_text(wanted)}, {size_text(free)} "
                f"free; the model takes {memory}"
            )
