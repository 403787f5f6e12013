"""Batches on the host, on the thread that brings them."""

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter

import torch
from torch import Tensor

from sharded_infer.batch import ModelInput
from sharded_infer.batch_sizes import BatchSizes
from sharded_infer.lookup import ShardedLookup
from sharded_infer.model_engine import RanBatch, padded_dense
from sharded_infer.tower import Tower
from sharded_infer.tower_kernels import kernel_bytes, run_samples


class HostEngine:
    """A model's lookups and tower on the host.

    Attributes:
        waits: false: a batch's thread computes.
        device_slots: none.
    """

    waits = False
    device_slots = 0

    def __init__(self, lookup: ShardedLookup, tower: Tower) -> None:
        """Keeps both.

        Args:
            lookup: pooled embeddings of a batch.
            tower: the dense part.
        """
        self._lookup, self._tower = lookup, tower
        program = tower.program
        self._sizes = BatchSizes(kernel_bytes(program), run_samples(program))

    def with_tower(self, tower: Tower) -> "HostEngine":
        """The same lookups under another tower."""
        return HostEngine(self._lookup, tower)

    @property
    def backends(self) -> Mapping[str, str]:
        """As `ModelEngine.backends`."""
        return self._lookup.backends

    @property
    def run_size(self) -> Callable[[int], int]:
        """As `ModelEngine.run_size`."""
        return self._sizes.run_size

    def run_sizes(self, largest: int) -> Sequence[int]:
        """As `ModelEngine.run_sizes`."""
        return self._sizes.up_to(largest)

    def memory_report(self) -> Sequence[str]:
        """As `ModelEngine.memory_report`: the host is no device."""
        return ()

    def run(self, batch: ModelInput) -> RanBatch:
        """As `ModelEngine.run`."""
        began = perf_counter()
        rows = self._sizes.run_size(batch.batch_size)
        embeddings, ids_outside, work = self._lookup.measured(batch, rows=rows)
        looked_up = perf_counter()
        found = self.score(padded_dense(batch, rows), embeddings)
        scores = tuple(score[: batch.batch_size].numpy() for score in found)
        return RanBatch(scores, looked_up - began, perf_counter() - looked_up, ids_outside, work)

    def embeddings(self, batch: ModelInput) -> Tensor:
        """As `ModelEngine.embeddings`."""
        found, _ = self._lookup(batch, rows=self._sizes.run_size(batch.batch_size))
        return found

    def score(self, dense: Sequence[Tensor], embeddings: Tensor) -> tuple[Tensor, ...]:
        """As `ModelEngine.score`."""
        pieces = self._sizes.pieces(len(embeddings))
        if len(pieces) == 1:
            return self._tower(dense, embeddings)
        parts = zip(*(torch.split(array, pieces) for array in (*dense, embeddings)), strict=True)
        scored = [self._tower(part[:-1], part[-1]) for part in parts]
        return tuple(torch.cat(output) for output in zip(*scored, strict=True))
