"""Runs batches on the host, on the calling thread."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sharded_infer.engines.model_engine import BatchResult, padded_dense
from sharded_infer.engines.sequence_runs import score_pieces
from sharded_infer.engines.split_towers import SplitTowers, shared_group
from sharded_infer.engines.user_cache import UserCache
from sharded_infer.engines.user_stage import UserStage
from sharded_infer.errors import InternalError
from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.inputs.sequences.layout import Packed
from sharded_infer.inputs.sequences.tower_rows import side_by_side
from sharded_infer.lookups.lookup_work import LookedUp, LookupWork
from sharded_infer.lookups.plan_lookups import PlanLookups
from sharded_infer.specs.model_spec import ModelSpec
from sharded_infer.tensors import tensor_of
from sharded_infer.towers.batch_sizes import BatchSizes
from sharded_infer.towers.split.split_tower import SplitTower
from sharded_infer.towers.tower import Tower
from sharded_infer.towers.tower_kernels import kernel_bytes, run_samples


class HostEngine:
    """A model's lookups and tower on the host, computed on the batch's thread.

    `users` keeps results of the user's stage; None: it is computed for each request.
    """

    waits = False
    device_slots = 0

    def __init__(self, lookups: PlanLookups, tower: Tower, spec: ModelSpec) -> None:
        self._lookups, self._tower, self._spec = lookups, tower, spec
        self._sequences = tuple(spec.sequences.values())
        self.users: UserCache | None = None
        program = tower.program
        self._sizes = BatchSizes(kernel_bytes(program), run_samples(program))
        self._splits = SplitTowers(tower, lookups.dims, sizes=len(self._sizes.sizes))
        self._stage = UserStage(tower, spec, self._sizes) if spec.tower.user_inputs else None

    def with_tower(self, tower: Tower) -> "HostEngine":
        """The same lookups with another tower."""
        return HostEngine(self._lookups, tower, self._spec)

    @property
    def backends(self) -> Mapping[str, str]:
        """See `ModelEngine.backends`."""
        return self._lookups.backends

    @property
    def checked_samples(self) -> int:
        """See `ModelEngine.checked_samples`."""
        return self._tower.samples

    @property
    def run_size(self) -> Callable[[int], int]:
        """See `ModelEngine.run_size`."""
        return self._sizes.run_size

    def run_sizes(self, largest: int) -> Sequence[int]:
        """See `ModelEngine.run_sizes`."""
        return self._sizes.up_to(largest)

    def memory_report(self) -> Sequence[str]:
        """Empty, as the host is no device."""
        return ()

    def run(
        self, batch: ModelInput, deadline: float = inf, *, may_default: bool = False
    ) -> BatchResult:
        """See `ModelEngine.run`; computes shared values of pairs once where worthwhile."""
        look_up = partial(self._lookups.look_up, deadline=deadline, may_default=may_default)
        if self._stage is not None:
            counts = self._stage.requests(batch, each=self.users is not None)
            if counts is not None:
                return self._run_stages(self._stage, batch, counts, look_up)
        if self._sequences:
            return self._run_pieces(batch, look_up)
        shared = shared_group(batch)
        if shared is not None:
            split = self._splits.of(shared.features)
            if split is not None and split.is_worthwhile(batch.batch_size, shared.batch_size):
                return self._run_split(
                    split, batch, shared.batch_size, deadline, may_default=may_default
                )
        began = perf_counter()
        rows = self._sizes.run_size(batch.batch_size)
        embeddings, ids_outside, work, _ = look_up(batch, rows=rows)
        looked_up = perf_counter()
        outputs = self.score(padded_dense(batch, rows), embeddings)
        if rows > batch.batch_size:
            outputs = tuple(score[: batch.batch_size] for score in outputs)
        scores = tuple(score.numpy() for score in outputs)
        return BatchResult(scores, looked_up - began, perf_counter() - looked_up, ids_outside, work)

    @property
    def kept_states(self) -> str | None:
        """As `UserStage.kept_states`; None without user inputs."""
        return None if self._stage is None else self._stage.kept_states

    def prepare(self, batch: ModelInput, deadline: float = inf) -> tuple[int, int]:
        """Computes and keeps the state of a request's user.

        Args:
            batch: one request; its user's inputs alone are read.

        Returns:
            Positions of a history whose state was kept before, and those computed now; 0 where it
            is not kept by positions.

        Raises:
            InternalError: `users` is None.
        """
        if self._stage is None or self.users is None:
            raise InternalError(f"model {self._spec.name!r}: no states of users are kept")
        look_up = partial(
            self._lookups.look_up,
            rows=batch.batch_size,
            grain=self._stage.grain,
            deadline=deadline,
            may_default=False,
        )
        return self._stage.prepare(batch, look_up, self.users)[2:]

    def _run_stages(
        self,
        stage: UserStage,
        batch: ModelInput,
        counts: NDArray[np.int64] | list[int],
        look_up: Callable[..., LookedUp],
    ) -> BatchResult:
        began = perf_counter()
        seconds = 0.0

        def timed(batch: ModelInput, *, packed: Packed | None = None) -> LookedUp:
            nonlocal seconds
            rows = batch.batch_size
            lookup = look_up(batch, rows=rows, grain=stage.grain, packed=packed)
            seconds = perf_counter() - began
            return lookup

        scores, lookup, users = stage.score(batch, counts, timed, self.users)
        whole = perf_counter() - began
        # Half the time of `_replace`.
        steps, saved, defaults, unknown, positions, _ = lookup.work
        work = LookupWork(steps, saved, defaults, unknown, positions, users)
        return BatchResult(scores, seconds, whole - seconds, lookup.ids_outside, work)

    def _run_pieces(self, batch: ModelInput, look_up: Callable[..., LookedUp]) -> BatchResult:
        began = perf_counter()
        lookup = look_up(batch, rows=batch.batch_size)
        looked_up = perf_counter()
        outputs, positions = score_pieces(batch, lookup, self._sequences, self.score, self.run_size)
        scores = tuple(output.numpy() for output in outputs)
        seconds = looked_up - began, perf_counter() - looked_up
        work = lookup.work._replace(positions=positions)
        return BatchResult(scores, *seconds, lookup.ids_outside, work)

    def _run_split(
        self,
        split: SplitTower,
        batch: ModelInput,
        requests: int,
        deadline: float,
        *,
        may_default: bool,
    ) -> BatchResult:
        began = perf_counter()
        pieces, request_pieces = (self._sizes.pieces(n) for n in (batch.batch_size, requests))
        rows = sum(pieces)
        (own, ids_outside, work, _), shared = self._lookups.look_up_apart(
            batch,
            rows=rows,
            request_rows=sum(request_pieces),
            deadline=deadline,
            may_default=may_default,
        )
        looked_up = perf_counter()
        owners = torch.zeros(rows, dtype=torch.int64)
        if batch.repeats is not None:
            repeats = tensor_of(batch.repeats)
            owners[: batch.batch_size] = torch.arange(requests).repeat_interleave(repeats)
        outputs = split(
            padded_dense(batch, rows),
            own,
            shared,
            owners,
            pieces=pieces,
            request_pieces=request_pieces,
        )
        scores = tuple(score[: batch.batch_size].numpy() for score in outputs)
        return BatchResult(scores, looked_up - began, perf_counter() - looked_up, ids_outside, work)

    def embeddings(self, batch: ModelInput) -> Tensor:
        """See `ModelEngine.embeddings`."""
        rows = self._sizes.run_size(batch.batch_size)
        lookup = self._lookups.look_up(batch, rows=rows)
        if not lookup.sequences:
            return lookup.pooled
        repeats = None if batch.repeats is None else tensor_of(batch.repeats)
        spread = [one.spread(batch.batch_size, rows, repeats) for one in lookup.sequences]
        return side_by_side(lookup.pooled, spread)

    def score(self, dense: Sequence[Tensor], embeddings: Tensor) -> tuple[Tensor, ...]:
        """See `ModelEngine.score`."""
        pieces = self._sizes.pieces(len(embeddings))
        if len(pieces) == 1:
            return self._tower(dense, embeddings)
        parts = zip(*(torch.split(array, pieces) for array in (*dense, embeddings)), strict=True)
        scored = [self._tower(part[:-1], part[-1]) for part in parts]
        return tuple(torch.cat(output) for output in zip(*scored, strict=True))
