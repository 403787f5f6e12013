"""Runs batches on devices, for one tower: staged, copied, looked up, scored, brought back.

    the caller's thread   writes ids and dense inputs into a slot's pinned memory
    copy streams          pinned memory -> each device that has features of the batch
    compute streams       fused lookups; parts cross to the tower's device; tower; scores -> pinned
    the caller's thread   waits for one event, takes the scores, gives the slot back

There are a few slots, so that the next batch is written and copied while one is computed. Whoever
brings a batch launches it, one at a time; no other thread stands between. For each slot, bucket and
kind of batch what a device does is captured once, as a graph. Batches that no graph fits (more
samples than the largest bucket, more ids than a slot holds, weights where none are expected) run
the same work uncaptured.
"""

import itertools
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sharded_infer.batch import ModelInput
from sharded_infer.device.buckets import bucket_of
from sharded_infer.device.engine_memory import (
    BatchKind,
    EngineMemory,
    EngineShape,
    Room,
    Slot,
    columns_of,
)
from sharded_infer.device.input_writer import is_shared, is_weighted
from sharded_infer.device.runtime import Work
from sharded_infer.device.tower_step import ArrivedPart, put_together, score_into
from sharded_infer.progress import Progress, no_progress


@dataclass(frozen=True, slots=True)
class _Launch:
    """A batch that is written, and where."""

    slot: Slot
    room: Room
    bucket: int
    kind: BatchKind
    ids: tuple[int, ...] = ()  # by site


class Engine:
    """Batches on devices, for one tower; any thread may call.

    Attributes:
        shape: how large it is.
        memory: what its batches need.
    """

    def __init__(
        self,
        memory: EngineMemory,
        shape: EngineShape,
        progress: Progress = no_progress,
    ) -> None:
        """Takes all memory that batches need, and captures every bucket.

        Args:
            memory: of what it runs.
            shape: how large.
            progress: told the graphs captured.

        Raises:
            CapacityError: a device has no memory for it; says what was asked for.
        """
        self.shape = shape
        self._parts, self._runtime = memory.parts, memory.runtime
        self.memory = memory
        self._sites, self._home = self.memory.sites, self.memory.sites[0]
        self._launching = threading.Lock()
        self._room = self.memory.room(shape.buckets[-1])
        slots = [self.memory.slot(shape.buckets[-1], shape.ids) for _ in range(shape.slots)]
        self._capture(slots, progress)
        self._free: queue.SimpleQueue[Slot] = queue.SimpleQueue()
        for slot in slots:
            self._free.put(slot)

    def run(self, batch: ModelInput) -> list[NDArray[np.float32]]:
        """Scores a batch.

        Args:
            batch: at least one sample; its ids are checked.

        Returns:
            fp32 `[B]` or `[B, K]` of each output.

        Raises:
            CapacityError: it is larger than what was prepared for, and there is no memory for it.
        """
        bucket = bucket_of(batch.batch_size, self.shape.buckets)
        ids = _most_ids(batch)
        if bucket is None or ids > self.shape.ids:
            size = bucket or batch.batch_size
            room = self._room if bucket is not None else self.memory.room(size)
            return self._run_in(self.memory.slot(size, ids), room, size, batch)
        slot = self._free.get()
        try:
            return self._run_in(slot, self._room, bucket, batch)
        finally:
            self._free.put(slot)

    def embeddings(self, batch: ModelInput) -> Tensor:
        """Pooled embeddings, on the host; slow, for checks.

        Args:
            batch: its ids are checked.

        Returns:
            fp32 `[B, width]`.
        """
        size = batch.batch_size
        slot = self.memory.slot(size, _most_ids(batch))
        launch = self._write(slot, self.memory.room(size), size, batch)
        found = torch.empty(size, self._parts.width)

        def work() -> None:
            found.copy_(self._gather(launch))

        with self._launching:
            self._send(launch)
            self._look_up_elsewhere(launch)
            self._runtime.run(self._home.computes, work)
            self._runtime.record(slot.done, self._home.computes)
        self._runtime.synchronize(slot.done)
        return found

    def score(self, dense: Sequence[Tensor], embeddings: Tensor) -> list[Tensor]:
        """Runs the tower on tensors of the host; slow, for checks.

        Args:
            dense: fp32 `[B, width]` each.
            embeddings: fp32 `[B, width]`.

        Returns:
            fp32 `[B]` or `[B, K]` of each output, on the host.
        """
        home, done = self._home, self._runtime.event()
        found: list[Tensor] = []

        def work() -> None:
            there = [one.to(home.tensors) for one in (*dense, embeddings)]
            found.extend(one.cpu() for one in self._parts.tower(there[:-1], there[-1]))

        with self._launching:
            self._runtime.run(home.computes, work)
            self._runtime.record(done, home.computes)
        self._runtime.synchronize(done)
        return found

    def _run_in(
        self, slot: Slot, room: Room, bucket: int, batch: ModelInput
    ) -> list[NDArray[np.float32]]:
        launch = self._write(slot, room, bucket, batch)
        with self._launching:
            self._send(launch)
            self._look_up_elsewhere(launch)
            self._finish(launch)
        self._runtime.synchronize(slot.done)
        # The slot is about to be another batch's.
        scores = self.memory.scores(slot, bucket)
        return [one[: batch.batch_size].numpy().copy() for one in scores]

    def _write(self, slot: Slot, room: Room, bucket: int, batch: ModelInput) -> _Launch:
        ids = []
        kind = BatchKind(is_shared(batch), is_weighted(batch))
        for number, site in enumerate(self._sites):
            arrays = self.memory.host_arrays(slot, number, bucket)
            ids.append(site.writer.write(batch, arrays, bucket))
            if kind.weighted:
                site.writer.write_weights(batch, arrays, bucket)
        return _Launch(slot, room, bucket, kind, tuple(ids))

    def _send(self, launch: _Launch) -> None:
        """Copies what was written to the devices."""
        runtime, slot = self._runtime, launch.slot
        for number, site in enumerate(self._sites):
            views = self.memory.host_arrays(slot, number, launch.bucket).views
            end = views.values_begin + launch.ids[number] * site.shape.id_dtype.itemsize
            runtime.copy(site.copies, slot.inputs[number][:end], slot.pinned[number][:end])
            if launch.kind.weighted:
                begin = views.weights_begin
                end = begin + 4 * launch.ids[number]
                source = slot.pinned[number][begin:end]
                runtime.copy(site.copies, slot.inputs[number][begin:end], source)
            runtime.record(slot.copied[number], site.copies)
            runtime.wait(site.computes, slot.copied[number])

    def _look_up_elsewhere(self, launch: _Launch) -> None:
        """Lookups of the other devices, and their parts' way to the tower's."""
        runtime = self._runtime
        for number, site in enumerate(self._sites[1:], start=1):
            runtime.run(site.computes, self._graph(launch, number))
            size = launch.bucket * site.lookups.part_width
            runtime.peer_copy(
                self._home.computes,
                site.computes,
                launch.room.arrived[number][:size],
                launch.room.parts[number][:size],
            )

    def _finish(self, launch: _Launch) -> None:
        """What the tower's device does."""
        runtime, home = self._runtime, self._home
        runtime.run(home.computes, self._graph(launch, 0))
        runtime.record(launch.slot.done, home.computes)

    def _graph(self, launch: _Launch, number: int) -> Work:
        """What a site does with a batch, captured if there is such a graph."""
        graph = launch.slot.graphs.get(_graph_key(launch, number))
        return graph or self._work(launch, number)

    def _work(self, launch: _Launch, number: int) -> Work:
        """What a site does with a batch."""
        return self._lookup_work(launch, number) if number else self._tower_work(launch)

    def _lookup_work(self, launch: _Launch, number: int) -> Work:
        """What a device without the tower does."""
        width = self._sites[number].lookups.part_width
        part = columns_of(launch.room.parts[number], launch.bucket, width)
        return lambda: self._pool(launch, number, None, part)

    def _tower_work(self, launch: _Launch) -> Work:
        """What the tower's device does once everything has arrived."""
        scores = self.memory.scores(launch.slot, launch.bucket)
        inputs = self.memory.inputs(launch.slot, 0, launch.bucket)
        return lambda: score_into(self._parts.tower, inputs, self._gather(launch), scores)

    def _gather(self, launch: _Launch) -> Tensor:
        """The tower's sparse input, with its own device's lookups; runs on the home stream."""
        bucket, room = launch.bucket, launch.room
        pooled = columns_of(room.pooled, bucket, self._parts.width)
        arrived = [
            ArrivedPart(columns_of(memory, bucket, site.lookups.part_width), site.lookups.runs)
            for site, memory in zip(self._sites, room.arrived, strict=True)
        ]
        self._pool(launch, 0, pooled, arrived[0].columns)
        inputs = self.memory.inputs(launch.slot, 0, bucket)
        return put_together(pooled, arrived, inputs, self._parts.split, shared=launch.kind.shared)

    def _pool(self, launch: _Launch, number: int, pooled: Tensor | None, part: Tensor) -> None:
        site = self._sites[number]
        inputs = self.memory.inputs(launch.slot, number, launch.bucket)
        weights = inputs.weights if launch.kind.weighted else None
        site.lookups.pool(inputs.values, inputs.offsets, pooled=pooled, part=part, weights=weights)

    def _capture(self, slots: Sequence[Slot], progress: Progress) -> None:
        """Runs every bucket, which compiles what it needs, and keeps it as graphs."""
        # The largest first: what follows finds its memory.
        buckets = self.shape.buckets[::-1]
        if not self.shape.weighted:
            # No graph has their kernels, which are compiled now.
            self._run_all(_Launch(slots[0], self._room, buckets[-1], BatchKind(weighted=True)))
        for bucket, kind in itertools.product(buckets, self.shape.kinds):
            self._run_all(_Launch(slots[0], self._room, bucket, kind))
        for site in self._sites:
            # What that took is free, but not for the graphs' memory.
            self._runtime.release_cached(site.lookups.device)
        for done, (bucket, slot) in enumerate(itertools.product(buckets, slots), start=1):
            for kind in self.shape.kinds:
                self._capture_all(_Launch(slot, self._room, bucket, kind))
            progress("capturing graphs", done, len(buckets) * len(slots))

    def _run_all(self, launch: _Launch) -> None:
        """Runs what all sites do and waits for it, on empty bags: nothing was written yet."""
        for number, site in enumerate(self._sites):
            done = self._runtime.event()
            self._runtime.run(site.computes, self._work(launch, number))
            self._runtime.record(done, site.computes)
            self._runtime.synchronize(done)

    def _capture_all(self, launch: _Launch) -> None:
        """Keeps what all sites do as graphs."""
        for number, site in enumerate(self._sites):
            key, graphs = _graph_key(launch, number), launch.slot.graphs
            if key not in graphs:
                graphs[key] = self._runtime.capture(site.computes, self._work(launch, number))


def _graph_key(launch: _Launch, number: int) -> tuple[int, int, BatchKind]:
    """By which a slot keeps a site's graph; shared bags matter where the tower is."""
    kind = launch.kind
    return number, launch.bucket, kind if number == 0 else BatchKind(weighted=kind.weighted)


def _most_ids(batch: ModelInput) -> int:
    """Ids that a device may need of a batch."""
    return sum(len(group.values) for group in batch.groups)
