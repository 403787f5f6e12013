"""Split towers of one model, made when requests share the same features repeatedly."""

import itertools
import logging
import threading
from collections.abc import Sequence

from sharded_infer.errors import TowerError
from sharded_infer.inputs.model_input import JaggedBatch, ModelInput
from sharded_infer.towers.batch_sizes import KERNEL_BYTES
from sharded_infer.towers.split.parts import Run
from sharded_infer.towers.split.split_tower import SplitTower
from sharded_infer.towers.tower import Tower
from sharded_infer.towers.tower_kernels import added_kernel_bytes

_LOG = logging.getLogger("sharded_infer.engines")

# Batches with the same shared features that run on the whole tower before it is split.
_BEFORE = 4
# Clients choose what they share: the bounds keep a hostile one from filling memory.
_MOST_TOWERS = 4
_MOST_COUNTED = 64


def shared_group(batch: ModelInput) -> JaggedBatch | None:
    """Features that samples share; None if they share none."""
    shared = (group for group in batch.groups if group.batch_size != batch.batch_size)
    return next(shared, None)


class SplitTowers:
    """Split towers by features; thread-safe: during a split, other threads use the whole one.

    `dims` are each feature's columns; `sizes` is the number of batch sizes.
    """

    def __init__(self, tower: Tower, dims: Sequence[int], *, sizes: int = 1) -> None:
        self._tower, self._dims, self._sizes = tower, dims, sizes
        self._kernel_bytes = 0
        self._made: dict[tuple[int, ...], SplitTower | None] = {}
        self._seen: dict[tuple[int, ...], int] = {}
        self._lock = threading.Lock()

    def of(self, features: tuple[int, ...]) -> SplitTower | None:
        """The tower for requests that share ascending features; None: use the whole tower."""
        if features in self._made:
            return self._made[features]
        full = len(self._made) >= _MOST_TOWERS or self._kernel_bytes >= KERNEL_BYTES
        if full or not self._lock.acquire(blocking=False):
            return None
        try:
            if features not in self._seen and len(self._seen) >= _MOST_COUNTED:
                return None
            self._seen[features] = self._seen.get(features, 0) + 1
            if self._seen[features] <= _BEFORE:
                return None
            if features not in self._made:
                self._made[features] = self._split(features)
            return self._made[features]
        finally:
            self._lock.release()

    def _split(self, features: tuple[int, ...]) -> SplitTower | None:
        try:
            shared = set(features)
            kinds = [at in shared for at in range(len(self._dims))]
            split = self._tower.split(runs_of(kinds, self._dims))
        except TowerError as error:
            _LOG.warning("what requests share is computed for every pair: %s", error)
            return None
        if split is not None:
            parts = split.program.request, split.program.pair
            self._kernel_bytes += self._sizes * added_kernel_bytes(parts, self._tower.program)
        return split


def runs_of(shared: Sequence[bool], dims: Sequence[int]) -> list[Run]:
    """Runs of columns by request (`shared`) and by pair, from each feature's `dims`."""
    by_kind = itertools.groupby(range(len(dims)), key=shared.__getitem__)
    return [Run(kind, sum(dims[at] for at in run)) for kind, run in by_kind]
