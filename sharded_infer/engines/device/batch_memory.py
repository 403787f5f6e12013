"""Memory of an engine's batches: a slot for each batch in flight, and shared work buffers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sharded_infer.engines.device.device_lookups import DeviceLookups
from sharded_infer.engines.device.input_layout import (
    InputShape,
    InputViews,
    input_bytes,
    input_views,
)
from sharded_infer.engines.device.input_writer import InputWriter
from sharded_infer.engines.device.runtime.runtime import Runtime, Work
from sharded_infer.engines.device.tower_step import Scorer
from sharded_infer.lookups.columns import SplitFeatures


@dataclass(frozen=True, slots=True)
class EngineParts:
    """The lookups and the tower that an engine runs.

    Attributes:
        lookups: lookups of each device; the tower's device comes first.
        columns: int64 `[features + 1]`, first column of each feature in the tower's input, then the
            end of the last.
        id_dtype: int32 if every table's ids fit.
    """

    lookups: Sequence[DeviceLookups]
    tower: Scorer
    split: SplitFeatures
    columns: NDArray[np.int64]
    dense_widths: tuple[int, ...]
    id_dtype: torch.dtype

    @property
    def width(self) -> int:
        """Columns of the tower's sparse input."""
        return int(self.columns[-1])


@dataclass(frozen=True, slots=True)
class BatchKind:
    """Properties of a batch, besides its size, that decide which graph runs it.

    `shared`: samples share bags. `weighted`: ids have weights.
    """

    shared: bool = False
    weighted: bool = False


@dataclass(frozen=True, slots=True)
class EngineShape:
    """Capacity of an engine.

    Attributes:
        buckets: captured batch sizes, ascending.
        ids: capacity of a slot for each device, in ids.
        weighted: True if batches with weights are captured too.
        slots: maximum number of batches in flight.
        overlapped: True if a batch's lookups run beside the tower of the one before.
    """

    buckets: tuple[int, ...]
    ids: int
    weighted: bool = False
    slots: int = 4
    overlapped: bool = False

    @property
    def tower_inputs(self) -> int:
        """Buffers of the tower's sparse input."""
        return 1 + self.overlapped

    @property
    def kinds(self) -> tuple[BatchKind, ...]:
        """The captured kinds of batches."""
        weights = (False, True) if self.weighted else (False,)
        return tuple(
            BatchKind(shared, weighted) for weighted in weights for shared in (False, True)
        )


@dataclass(slots=True)
class DeviceStreams:
    """An engine's streams and lookups on one device.

    Attributes:
        tensors: torch device of its tensors; the host for a simulated device.
        copies: stream for copies from the host.
        computes: stream for all other work.
    """

    lookups: DeviceLookups
    shape: InputShape
    writer: InputWriter
    tensors: torch.device
    copies: Any
    computes: Any


@dataclass(slots=True)
class WorkBuffers:
    """Flat fp32 buffers that compute streams write, one batch after another.

    Attributes:
        pooled: `[B, width]`, the tower's sparse input, for batches in turn.
        scored: an event for each, recorded after the tower that read it.
        parts: `[B, part_width]` for each device, in its memory.
        arrived: the same parts in the memory of the tower's device.
    """

    pooled: list[Tensor]
    scored: list[Any]
    parts: list[Tensor]
    arrived: list[Tensor]


@dataclass(slots=True)
class BatchSlot:
    """Memory, events and graphs of one batch in flight.

    Attributes:
        pinned: uint8 for each device, written by the host.
        inputs: the copy of `pinned` on each device.
        scores: flat fp32, pinned.
        turn: its buffer of the tower's sparse input.
        copied: an event for each device, recorded after its input copy.
        gathered: an event, recorded after the tower's sparse input.
        done: an event, recorded after the scores.
        host: views of `pinned`, by device and bucket.
        graphs: by device, bucket and kind of batch.
    """

    pinned: list[Tensor]
    inputs: list[Tensor]
    scores: Tensor
    turn: int
    copied: list[Any]
    gathered: Any
    done: Any
    host: dict[tuple[int, int], InputViews] = field(default_factory=dict)
    graphs: dict[tuple[int, int, BatchKind], Work] = field(default_factory=dict)


class EngineMemory:
    """Allocates streams (`all_streams`: the tower's device first), work buffers and slots."""

    def __init__(self, parts: EngineParts, runtime: Runtime) -> None:
        self.parts, self.runtime = parts, runtime
        self.all_streams = tuple(self._streams_of(lookups) for lookups in parts.lookups)

    def buffers(self, batch: int, tower_inputs: int = 1) -> WorkBuffers:
        """Work buffers for up to `batch` samples; raises CapacityError."""
        widths = [streams.lookups.part_width for streams in self.all_streams]
        parts = [
            self._floats(streams, batch * width)
            for streams, width in zip(self.all_streams, widths, strict=True)
        ]
        home = self.all_streams[0]
        arrived = [self._floats(home, batch * width) for width in widths[1:]]
        return WorkBuffers(
            [self._floats(home, batch * self.parts.width) for _ in range(tower_inputs)],
            [self.runtime.event() for _ in range(tower_inputs)],
            parts,
            [parts[0], *arrived],
        )

    def slot(self, batch: int, ids: int, turn: int = 0) -> BatchSlot:
        """A slot for up to `batch` samples, and up to `ids` ids for each device.

        Raises CapacityError if a device or the host has too little memory.
        """
        runtime = self.runtime
        sizes = [input_bytes(streams.shape, batch, ids) for streams in self.all_streams]
        width = sum(width or 1 for width in self.parts.tower.output_widths)
        return BatchSlot(
            pinned=[runtime.pinned(size) for size in sizes],
            inputs=[
                runtime.empty(streams.lookups.device, size)
                for streams, size in zip(self.all_streams, sizes, strict=True)
            ],
            scores=runtime.pinned(4 * batch * width).view(torch.float32),
            turn=turn,
            copied=[runtime.event() for _ in self.all_streams],
            gathered=runtime.event(),
            done=runtime.event(),
        )

    def host_inputs(self, slot: BatchSlot, streams: int, bucket: int) -> InputViews:
        """Input arrays of a batch on the host, for the device with number `streams`."""
        views = slot.host.get((streams, bucket))
        if views is None:
            views = input_views(self.all_streams[streams].shape, slot.pinned[streams], bucket)
            slot.host[streams, bucket] = views
        return views

    def inputs(self, slot: BatchSlot, streams: int, bucket: int) -> InputViews:
        """Input arrays of a batch on the device with number `streams`."""
        return input_views(self.all_streams[streams].shape, slot.inputs[streams], bucket)

    def scores(self, slot: BatchSlot, bucket: int) -> list[Tensor]:
        """A batch's outputs in pinned memory: fp32 `[B]` or `[B, K]` each."""
        outputs, begin = [], 0
        for width in self.parts.tower.output_widths:
            end = begin + bucket * (width or 1)
            output = slot.scores[begin:end]
            outputs.append(output if width is None else output.view(bucket, width))
            begin = end
        return outputs

    def _streams_of(self, lookups: DeviceLookups) -> DeviceStreams:
        runtime, parts = self.runtime, self.parts
        return DeviceStreams(
            lookups=lookups,
            shape=InputShape(
                features=len(lookups.features),
                id_dtype=parts.id_dtype,
                has_tower=lookups is parts.lookups[0],
                width=parts.width,
                split_means=len(parts.split.means),
                dense_widths=parts.dense_widths,
            ),
            writer=InputWriter(
                lookups.features, columns=parts.columns, split_means=parts.split.means
            ),
            tensors=runtime.tensors_of(lookups.device),
            copies=runtime.stream(lookups.device),
            computes=runtime.stream(lookups.device),
        )

    def _floats(self, streams: DeviceStreams, count: int) -> Tensor:
        return self.runtime.empty(streams.lookups.device, 4 * count).view(torch.float32)


def columns_of(memory: Tensor, bucket: int, width: int) -> Tensor:
    """A bucket's rows in a flat buffer, as a view `[bucket, width]`."""
    return memory[: bucket * width].view(bucket, width)
