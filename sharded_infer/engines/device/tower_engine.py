"""Runs batches on devices for one tower.

    caller's thread   writes ids and dense inputs into a slot's pinned memory
    copy streams      pinned memory -> each device that has features of the batch
    compute streams   fused lookups; parts -> tower's device; tower; scores -> pinned memory
                      (lookups on a stream of their own, if they overlap the tower before)
    caller's thread   waits for one event, copies the scores, returns the slot

Several slots let one batch be written and copied while another is computed. The calling thread
launches its own batch, under a lock. Per slot, bucket and kind of batch, each device's work is
captured once as a CUDA graph. Work without a graph: too many samples, more ids than a slot holds,
or unexpected weights.
"""

import itertools
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sharded_infer.engines.device.batch_memory import (
    BatchKind,
    BatchSlot,
    EngineMemory,
    EngineShape,
    WorkBuffers,
    columns_of,
)
from sharded_infer.engines.device.buckets import bucket_of
from sharded_infer.engines.device.input_writer import is_shared, is_weighted
from sharded_infer.engines.device.runtime.runtime import Work
from sharded_infer.engines.device.tower_step import (
    ArrivedPart,
    assemble_inputs,
    score_into,
    spread_shared,
)
from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.progress import Progress, no_progress


@dataclass(frozen=True, slots=True)
class _Launch:
    slot: BatchSlot
    buffers: WorkBuffers
    bucket: int
    kind: BatchKind
    ids: tuple[int, ...] = ()  # by device


@dataclass(frozen=True, slots=True)
class _Step:
    """Work of a batch on one stream, captured as one graph.

    Attributes:
        number: of its device; -1: the tower, apart from its lookups.
    """

    number: int
    stream: Any
    work: Work


class TowerEngine:
    """Runs batches on devices for one tower; thread-safe."""

    def __init__(
        self,
        memory: EngineMemory,
        shape: EngineShape,
        progress: Progress = no_progress,
    ) -> None:
        """Allocates all memory for batches and captures every bucket.

        `progress` is called with the number of captures done.

        Raises:
            CapacityError: a device has too little memory; names the amount requested.
        """
        self.shape = shape
        self._parts, self._runtime = memory.parts, memory.runtime
        self.memory = memory
        self._all_streams, self._home = memory.all_streams, memory.all_streams[0]
        self._launching = threading.Lock()
        home, inputs = self._home, shape.tower_inputs
        self._gathers = (
            self._runtime.stream(home.lookups.device) if shape.overlapped else home.computes
        )
        self._buffers = self.memory.buffers(shape.buckets[-1], inputs)
        slots = [
            self.memory.slot(shape.buckets[-1], shape.ids, number % inputs)
            for number in range(shape.slots)
        ]
        self._capture(slots, progress)
        self._free: queue.SimpleQueue[BatchSlot] = queue.SimpleQueue()
        for slot in slots:
            self._free.put(slot)

    def run(self, batch: ModelInput) -> list[NDArray[np.float32]]:
        """Scores a batch of at least one sample, ids already checked.

        Returns fp32 `[B]` or `[B, K]` for each output. Raises CapacityError if the batch fits no
        slot, and there is no memory for a larger one.
        """
        bucket, ids = bucket_of(batch.batch_size, self.shape.buckets), _most_ids(batch)
        is_larger = bucket > self.shape.buckets[-1]
        if is_larger or ids > self.shape.ids:
            buffers = self.memory.buffers(bucket) if is_larger else self._buffers
            return self._run_in(self.memory.slot(bucket, ids), buffers, bucket, batch)
        slot = self._free.get()
        try:
            return self._run_in(slot, self._buffers, bucket, batch)
        finally:
            self._free.put(slot)

    def embeddings(self, batch: ModelInput) -> Tensor:
        """Pooled embeddings on the host, fp32 `[B, width]`, of checked ids; slow, for tests."""
        size = batch.batch_size
        slot = self.memory.slot(size, _most_ids(batch))
        launch = self._write(slot, self.memory.buffers(size), size, batch)
        embeddings = torch.empty(size, self._parts.width)

        def work() -> None:
            self._gather(launch)
            embeddings.copy_(self._tower_input(launch))

        with self._launching:
            self._send(launch)
            self._look_up_elsewhere(launch)
            self._runtime.run(self._gathers, work)
            self._runtime.record(slot.done, self._gathers)
        self._runtime.synchronize(slot.done)
        return embeddings

    def score(self, dense: Sequence[Tensor], embeddings: Tensor) -> list[Tensor]:
        """Runs the tower on host tensors, fp32 `[B, width]` each; slow, for tests.

        Returns fp32 `[B]` or `[B, K]` for each output, on the host.
        """
        home, done = self._home, self._runtime.event()
        scores: list[Tensor] = []

        def work() -> None:
            inputs = [tensor.to(home.tensors) for tensor in (*dense, embeddings)]
            scores.extend(score.cpu() for score in self._parts.tower(inputs[:-1], inputs[-1]))

        with self._launching:
            self._runtime.run(home.computes, work)
            self._runtime.record(done, home.computes)
        self._runtime.synchronize(done)
        return scores

    def _run_in(
        self, slot: BatchSlot, buffers: WorkBuffers, bucket: int, batch: ModelInput
    ) -> list[NDArray[np.float32]]:
        launch = self._write(slot, buffers, bucket, batch)
        with self._launching:
            self._send(launch)
            self._look_up_elsewhere(launch)
            self._score(launch)
            self._runtime.record(slot.done, self._home.computes)
        self._runtime.synchronize(slot.done)
        # Copied because the next batch reuses the slot.
        scores = self.memory.scores(slot, bucket)
        return [score[: batch.batch_size].numpy().copy() for score in scores]

    def _write(
        self, slot: BatchSlot, buffers: WorkBuffers, bucket: int, batch: ModelInput
    ) -> _Launch:
        ids = []
        kind = BatchKind(is_shared(batch), is_weighted(batch))
        for number, streams in enumerate(self._all_streams):
            views = self.memory.host_inputs(slot, number, bucket)
            ids.append(streams.writer.write(batch, views, bucket, weighted=kind.weighted))
        return _Launch(slot, buffers, bucket, kind, tuple(ids))

    def _send(self, launch: _Launch) -> None:
        runtime, slot = self._runtime, launch.slot
        for number, streams in enumerate(self._all_streams):
            views = self.memory.host_inputs(slot, number, launch.bucket)
            end = views.values_begin + launch.ids[number] * streams.shape.id_dtype.itemsize
            runtime.copy(streams.copies, slot.inputs[number][:end], slot.pinned[number][:end])
            if launch.kind.weighted:
                begin = views.weights_begin
                end = begin + 4 * launch.ids[number]
                source = slot.pinned[number][begin:end]
                runtime.copy(streams.copies, slot.inputs[number][begin:end], source)
            runtime.record(slot.copied[number], streams.copies)
            runtime.wait(streams.computes if number else self._gathers, slot.copied[number])

    def _look_up_elsewhere(self, launch: _Launch) -> None:
        runtime = self._runtime
        for number, streams in enumerate(self._all_streams[1:], start=1):
            step = self._lookup_step(launch, number)
            runtime.run(step.stream, self._graph(launch, step))
            size = launch.bucket * streams.lookups.part_width
            runtime.peer_copy(
                self._gathers,
                streams.computes,
                launch.buffers.arrived[number][:size],
                launch.buffers.parts[number][:size],
            )

    def _score(self, launch: _Launch) -> None:
        """Run the steps of the tower's device."""
        runtime, slot, computes = self._runtime, launch.slot, self._home.computes
        steps = self._home_steps(launch)
        if len(steps) == 1:
            runtime.run(computes, self._graph(launch, steps[0]))
            return
        scored = launch.buffers.scored[slot.turn]
        runtime.wait(self._gathers, scored)
        runtime.run(self._gathers, self._graph(launch, steps[0]))
        runtime.record(slot.gathered, self._gathers)
        runtime.wait(computes, slot.gathered)
        runtime.run(computes, self._graph(launch, steps[1]))
        runtime.record(scored, computes)

    def _graph(self, launch: _Launch, step: _Step) -> Work:
        return launch.slot.graphs.get(_graph_key(launch, step)) or step.work

    def _steps(self, launch: _Launch) -> list[_Step]:
        elsewhere = range(1, len(self._all_streams))
        return [
            *(self._lookup_step(launch, number) for number in elsewhere),
            *self._home_steps(launch),
        ]

    def _lookup_step(self, launch: _Launch, number: int) -> _Step:
        streams = self._all_streams[number]
        width = streams.lookups.part_width
        part = columns_of(launch.buffers.parts[number], launch.bucket, width)
        return _Step(number, streams.computes, lambda: self._pool(launch, number, None, part))

    def _home_steps(self, launch: _Launch) -> list[_Step]:
        scores = self.memory.scores(launch.slot, launch.bucket)
        inputs = self.memory.inputs(launch.slot, 0, launch.bucket)

        def gather() -> None:
            self._gather(launch)

        def score() -> None:
            score_into(self._parts.tower, inputs, self._tower_input(launch), scores)

        def both() -> None:
            gather()
            score()

        if self.shape.overlapped:
            return [_Step(0, self._gathers, gather), _Step(-1, self._home.computes, score)]
        return [_Step(0, self._home.computes, both)]

    def _tower_input(self, launch: _Launch) -> Tensor:
        pooled = self._pooled(launch)
        if not launch.kind.shared:
            return pooled
        return spread_shared(pooled, self.memory.inputs(launch.slot, 0, launch.bucket))

    def _pooled(self, launch: _Launch) -> Tensor:
        memory = launch.buffers.pooled[launch.slot.turn]
        return columns_of(memory, launch.bucket, self._parts.width)

    def _gather(self, launch: _Launch) -> None:
        bucket, buffers = launch.bucket, launch.buffers
        pooled = self._pooled(launch)
        arrived = [
            ArrivedPart(
                columns_of(memory, bucket, streams.lookups.part_width), streams.lookups.runs
            )
            for streams, memory in zip(self._all_streams, buffers.arrived, strict=True)
        ]
        self._pool(launch, 0, pooled, arrived[0].columns)
        inputs = self.memory.inputs(launch.slot, 0, bucket)
        assemble_inputs(pooled, arrived, inputs, self._parts.split)

    def _pool(self, launch: _Launch, number: int, pooled: Tensor | None, part: Tensor) -> None:
        streams = self._all_streams[number]
        inputs = self.memory.inputs(launch.slot, number, launch.bucket)
        weights = inputs.weights if launch.kind.weighted else None
        streams.lookups.pool(
            inputs.values, inputs.offsets, pooled=pooled, part=part, weights=weights
        )

    def _capture(self, slots: Sequence[BatchSlot], progress: Progress) -> None:
        """Runs every bucket once to compile its kernels, then captures it."""
        # The largest first, so that smaller ones reuse its memory.
        buckets = self.shape.buckets[::-1]
        if not self.shape.weighted:
            # Kernels for weighted batches are in no graph; this compiles them.
            self._run_all(_Launch(slots[0], self._buffers, buckets[-1], BatchKind(weighted=True)))
        for bucket, kind in itertools.product(buckets, self.shape.kinds):
            self._run_all(_Launch(slots[0], self._buffers, bucket, kind))
        for streams in self._all_streams:
            # The allocator caches that memory, where the graphs' pools cannot use it.
            self._runtime.release_cached(streams.lookups.device)
        for done, (bucket, slot) in enumerate(itertools.product(buckets, slots), start=1):
            for kind in self.shape.kinds:
                self._capture_all(_Launch(slot, self._buffers, bucket, kind))
            progress("capturing graphs", done, len(buckets) * len(slots))

    def _run_all(self, launch: _Launch) -> None:
        """Runs the work of all devices on empty bags and waits for it."""
        for step in self._steps(launch):
            done = self._runtime.event()
            self._runtime.run(step.stream, step.work)
            self._runtime.record(done, step.stream)
            self._runtime.synchronize(done)

    def _capture_all(self, launch: _Launch) -> None:
        for step in self._steps(launch):
            key, graphs = _graph_key(launch, step), launch.slot.graphs
            if key not in graphs:
                graphs[key] = self._runtime.capture(step.stream, step.work)


def _graph_key(launch: _Launch, step: _Step) -> tuple[int, int, BatchKind]:
    """Key of a step's graph in a slot; shared bags only matter on the tower's device."""
    kind = launch.kind
    key = kind if step.number <= 0 else BatchKind(weighted=kind.weighted)
    return step.number, launch.bucket, key


def _most_ids(batch: ModelInput) -> int:
    return sum(len(group.values) for group in batch.groups)
