"""The memory of an engine's batches: slots for those in flight, a room that they take turns at."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sharded_infer.device.device_lookups import DeviceLookups, SplitFeatures
from sharded_infer.device.input_layout import InputShape, InputViews, input_bytes, input_views
from sharded_infer.device.input_writer import HostArrays, InputWriter
from sharded_infer.device.runtime import Runtime, Work
from sharded_infer.device.tower_step import Scorer


@dataclass(frozen=True, slots=True)
class EngineParts:
    """What an engine runs.

    Attributes:
        lookups: of each device; the tower's is first.
        tower: on the first device.
        split: features whose rows ranks share.
        columns: int64, where each feature's columns begin in the tower's input, and their end.
        dense_widths: of each dense input.
        output_widths: of each output K, or None where it is `[B]`.
        id_dtype: int32 where every table's ids fit.
    """

    lookups: Sequence[DeviceLookups]
    tower: Scorer
    split: SplitFeatures
    columns: NDArray[np.int64]
    dense_widths: tuple[int, ...]
    output_widths: tuple[int | None, ...]
    id_dtype: torch.dtype

    @property
    def width(self) -> int:
        """Of the tower's sparse input."""
        return int(self.columns[-1])


@dataclass(frozen=True, slots=True)
class BatchKind:
    """What decides, beside its size, what a device does with a batch.

    Attributes:
        shared: samples share bags.
        weighted: ids have weights.
    """

    shared: bool = False
    weighted: bool = False


@dataclass(frozen=True, slots=True)
class EngineShape:
    """How large an engine is.

    Attributes:
        buckets: batch sizes that are captured, ascending.
        ids: that a slot holds for each device.
        weighted: whether batches whose ids have weights are captured too.
        slots: batches that are in flight at once.
    """

    buckets: tuple[int, ...]
    ids: int
    weighted: bool = False
    slots: int = 2

    @property
    def kinds(self) -> tuple[BatchKind, ...]:
        """The kinds of batches that are captured."""
        weights = (False, True) if self.weighted else (False,)
        return tuple(
            BatchKind(shared, weighted) for weighted in weights for shared in (False, True)
        )


@dataclass(frozen=True, slots=True)
class Towers:
    """How towers are made.

    Attributes:
        make: puts the tower on a device.
        output_widths: of each output K, or None where it is `[B]`.
        bytes_of: of a tower's weights, and of a batch's activations, given its size.
    """

    make: Callable[[torch.device], Scorer]
    output_widths: tuple[int | None, ...]
    bytes_of: Callable[[Any, int], tuple[int, int]]


@dataclass(slots=True)
class Site:
    """A device, and what an engine has there for good.

    Attributes:
        lookups: what it looks up.
        shape: of what batches send it.
        writer: writes that.
        tensors: where its tensors lie for torch.
        copies: the stream of copies from the host.
        computes: the stream of all else.
    """

    lookups: DeviceLookups
    shape: InputShape
    writer: InputWriter
    tensors: torch.device
    copies: Any
    computes: Any


@dataclass(slots=True)
class Room:
    """What compute streams write, one batch after another.

    Attributes:
        pooled: fp32 `[B, width]` flat, the tower's sparse input.
        parts: of each site, fp32 `[B, part_width]` flat, on its device.
        arrived: the same on the tower's device.
    """

    pooled: Tensor
    parts: list[Tensor]
    arrived: list[Tensor]


@dataclass(slots=True)
class Slot:
    """What a batch in flight has to itself.

    Attributes:
        pinned: of each site, uint8, what the host writes.
        inputs: of each site, uint8, the same on the device.
        scores: fp32 flat, pinned.
        copied: of each site, an event: the input is there.
        done: an event: the scores are.
        host: views of `pinned`, by site and bucket.
        graphs: by site, bucket and kind of batch.
    """

    pinned: list[Tensor]
    inputs: list[Tensor]
    scores: Tensor
    copied: list[Any]
    done: Any
    host: dict[tuple[int, int], HostArrays] = field(default_factory=dict)
    graphs: dict[tuple[int, int, BatchKind], Work] = field(default_factory=dict)


class EngineMemory:
    """Makes an engine's sites, rooms and slots.

    Attributes:
        parts: what the engine runs.
        runtime: where.
        sites: the tower's first.
    """

    def __init__(self, parts: EngineParts, runtime: Runtime) -> None:
        """Prepares the sites.

        Args:
            parts: what the engine runs.
            runtime: where.
        """
        self.parts, self.runtime = parts, runtime
        self.sites = tuple(self._site(lookups) for lookups in parts.lookups)

    def room(self, batch: int) -> Room:
        """Room for batches of up to so many samples.

        Raises:
            CapacityError: a device has no memory for it.
        """
        widths = [site.lookups.part_width for site in self.sites]
        parts = [
            self._floats(site, batch * width)
            for site, width in zip(self.sites, widths, strict=True)
        ]
        home = self.sites[0]
        arrived = [self._floats(home, batch * width) for width in widths[1:]]
        return Room(self._floats(home, batch * self.parts.width), parts, [parts[0], *arrived])

    def slot(self, batch: int, ids: int) -> Slot:
        """A slot for batches of up to so many samples, and so many ids a device.

        Raises:
            CapacityError: a device or the host has no memory for it.
        """
        runtime = self.runtime
        sizes = [input_bytes(site.shape, batch, ids) for site in self.sites]
        width = sum(width or 1 for width in self.parts.output_widths)
        return Slot(
            pinned=[runtime.pinned(size) for size in sizes],
            inputs=[
                runtime.empty(site.lookups.device, size)
                for site, size in zip(self.sites, sizes, strict=True)
            ],
            scores=runtime.pinned(4 * batch * width).view(torch.float32),
            copied=[runtime.event() for _ in self.sites],
            done=runtime.event(),
        )

    def slot_bytes(self, batch: int, ids: int) -> dict[torch.device, int]:
        """What a slot takes of each device."""
        return {site.lookups.device: input_bytes(site.shape, batch, ids) for site in self.sites}

    def room_bytes(self, batch: int) -> dict[torch.device, int]:
        """What a room takes of each device."""
        home, *others = self.sites
        taken = {site.lookups.device: 4 * batch * site.lookups.part_width for site in self.sites}
        arriving = sum(site.lookups.part_width for site in others)
        taken[home.lookups.device] += 4 * batch * (self.parts.width + arriving)
        return taken

    def host_arrays(self, slot: Slot, site: int, bucket: int) -> HostArrays:
        """Where the host writes a batch for a site."""
        arrays = slot.host.get((site, bucket))
        if arrays is None:
            views = input_views(self.sites[site].shape, slot.pinned[site], bucket)
            arrays = slot.host[site, bucket] = HostArrays(views)
        return arrays

    def inputs(self, slot: Slot, site: int, bucket: int) -> InputViews:
        """What a site reads of a batch."""
        return input_views(self.sites[site].shape, slot.inputs[site], bucket)

    def scores(self, slot: Slot, bucket: int) -> list[Tensor]:
        """Where a batch's outputs arrive."""
        found, begin = [], 0
        for width in self.parts.output_widths:
            end = begin + bucket * (width or 1)
            one = slot.scores[begin:end]
            found.append(one if width is None else one.view(bucket, width))
            begin = end
        return found

    def _site(self, lookups: DeviceLookups) -> Site:
        runtime, parts = self.runtime, self.parts
        return Site(
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

    def _floats(self, site: Site, count: int) -> Tensor:
        return self.runtime.empty(site.lookups.device, 4 * count).view(torch.float32)


def columns_of(memory: Tensor, bucket: int, width: int) -> Tensor:
    """The lines of a bucket in a flat memory: `[bucket, width]`."""
    return memory[: bucket * width].view(bucket, width)
