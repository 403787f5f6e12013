"""Stages of a tower whose spec names the user's inputs; each user's state is computed once.

for each request: its user's state from the cache, or from the first stage, alone
for all candidates: the second stage, with the states of their requests

A state depends on its request alone, to the bit: a cached one equals one computed again. Where
the first stage is causal, the states of a history's positions are kept, and a request computes
those behind its longest known beginning.
"""

from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from time import perf_counter
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.abi.user_states import Keeping
from sharded_infer.engines.growing_sequence import GrowingSequence, KnownHistories
from sharded_infer.engines.sequence_runs import part_of
from sharded_infer.engines.split_towers import runs_of
from sharded_infer.engines.user_cache import State, UserCache
from sharded_infer.inputs.model_input import JaggedBatch, ModelInput
from sharded_infer.inputs.sequences.layout import GRAIN, Packed
from sharded_infer.inputs.sequences.tower_rows import SequenceRows
from sharded_infer.lookups.lookup_work import LookedUp
from sharded_infer.specs.model_spec import ModelSpec
from sharded_infer.tensors import tensor_of
from sharded_infer.towers.batch_sizes import BatchSizes
from sharded_infer.towers.tower import Tower
from sharded_infer.towers.tower_kernels import kernel_bytes

# As `LookupWork.users`.
Users = tuple[int, int, int, int]
Scores = NDArray[np.float32]


class LookUp(Protocol):
    """Looks up a batch."""

    def __call__(self, batch: ModelInput, *, packed: Packed | None = None) -> LookedUp:
        """`packed` is the sequence that is looked up without padding."""


_KEY_BYTES = 16


class UserStage:
    """Scores batches whose requests send the user's inputs once; thread-safe.

    Attributes:
        grain: of the padded sequences of its lookups.
    """

    def __init__(self, tower: Tower, spec: ModelSpec, sizes: BatchSizes) -> None:
        """Splits the tower; raises TowerError if it cannot be split.

        `spec` has `tower.user_inputs`, `sizes` are the tower's batch sizes.
        """
        names = frozenset(spec.tower.user_inputs)
        pooled = [feature.name in names for feature in spec.features]
        dims = [feature.table.dim for feature in spec.features]
        self._split = tower.split_user(names, runs_of(pooled, dims))
        counts = torch.tensor(dims, dtype=torch.int64)
        columns = torch.tensor(pooled, dtype=torch.bool).repeat_interleave(counts)
        self._by_user, self._own = map(_Columns, (columns, ~columns))
        shared = frozenset(self._split.shared)
        self._own_names = [name for name in tower.inputs.names[:-1] if name not in shared]
        self._sequences = [
            (one.inputs(name), one, name in names) for name, one in spec.sequences.items()
        ]
        # A user's sequences are read one request at a time, without padding.
        self.grain = 1 if all(is_users for _, _, is_users in self._sequences) else GRAIN
        self._dense_names = tuple(spec.dense.inputs)
        self._dense = tuple(at for at, name in enumerate(self._dense_names) if name in names)
        self._jagged = frozenset(
            at
            for at, feature in enumerate(spec.input_features)
            if (feature.sequence or feature.name) in names
        )
        self._growing = GrowingSequence.of(self._split, spec)
        # Requests run in one call if all that they send by position is a growing sequence.
        sequences = sum(is_users for _, _, is_users in self._sequences)
        self._are_joined = self._split.program.together is not None and sequences == 1
        self._sizes = sizes
        # Without kernels per batch size, any number of candidates runs unpadded.
        self._pads = kernel_bytes(self._split.program.pair) > 0

    @property
    def kept_states(self) -> str:
        """How a user cache keeps its states, and why not by positions."""
        if self._growing is not None:
            return "by positions of the history: a longer one is continued"
        growing = self._split.growing
        reason = growing if isinstance(growing, str) else "it has rows of several sequences"
        return f"whole: {reason}"

    def requests(
        self, batch: ModelInput, *, each: bool = False
    ) -> NDArray[np.int64] | list[int] | None:
        """Number of candidates per request; None where a request's users' inputs differ.

        With `each`, every sample counts as a request, if requests share nothing.
        """
        samples = batch.batch_size
        own = [group for group in batch.groups if group.lengths.shape[1] == samples]
        if len(own) == len(batch.groups):
            return np.ones(samples, np.int64) if each or samples == 1 else None
        for group in own:
            if not self._jagged.isdisjoint(group.features):
                return None
        counts = [samples] if batch.repeats is None else batch.repeats
        sent = [batch.dense[at] for at in self._dense if len(batch.dense[at]) == samples]
        if sent:
            firsts = np.repeat(np.cumsum(counts) - np.asarray(counts), counts)
            if not all(np.array_equal(one, one[firsts], equal_nan=True) for one in sent):
                return None
        return counts

    def score(
        self,
        batch: ModelInput,
        counts: NDArray[np.int64] | list[int],
        look_up: LookUp,
        cache: UserCache | None,
    ) -> tuple[tuple[Scores, ...], LookedUp, Users]:
        """Scores a batch; thread-safe.

        Args:
            counts: from `requests`.
            look_up: of the batch, without the rows of cached users.
        """
        if cache is None and len(counts) == 1:
            lookup = look_up(batch)
            return self._one(batch, lookup), lookup, (0, 1, 0, 0)
        counts = np.asarray(counts, np.int64)
        if self._growing is not None:
            known = KnownHistories(self._growing, batch, counts, cache)
            while (scored := self._of_histories(known, batch, counts, look_up)) is None:
                known.forget()
            return scored
        with torch.inference_mode():
            return self._of_each(batch, counts, look_up, cache)

    def prepare(self, batch: ModelInput, look_up: LookUp, cache: UserCache) -> Users:
        """Computes and keeps the state of a batch's only request; thread-safe."""
        with torch.inference_mode():
            if self._growing is not None:
                return self._prepare_known(self._growing, batch, look_up, cache)
            [key] = self._keys(batch, np.ones(1, np.int64))
            if cache.take([key]) != [None]:
                return 1, 0, 0, 0
            began = perf_counter()
            lookup = look_up(batch)
            dense, own, whole = self._user_inputs(batch, lookup, 0, 0, 1)
            state = self._split.user(dense, own, whole=whole)
            if not any(defaults[0] for defaults in lookup.work.defaults.values()):
                cache.keep(key, state, perf_counter() - began, is_always=True)
            return 0, 1, 0, 0

    def _prepare_known(
        self, growing: GrowingSequence, batch: ModelInput, look_up: LookUp, cache: UserCache
    ) -> Users:
        known = KnownHistories(growing, batch, np.array([batch.batch_size]), cache)
        prefix = known.prefixes
        if prefix is None or not known.packed.are_all_used:
            return 0, 1, 0, 0
        while True:
            lookup = look_up(batch, packed=known.packed)
            known.keep(lookup, Keeping.ALL)
            dense, own, _ = self._user_inputs(batch, lookup, 0, 0, 1, known.packed)
            if self._split.behind(dense, own, prefix) is not None:
                return known.users
            known.forget()

    def _of_each(
        self,
        batch: ModelInput,
        counts: NDArray[np.int64],
        look_up: LookUp,
        cache: UserCache | None,
    ) -> tuple[tuple[Scores, ...], LookedUp, Users]:
        keys: list[bytes] = []
        states: list[State | None] = [None] * len(counts)
        asked = batch
        if cache is not None:
            keys = self._keys(batch, counts)
            states = cache.take(keys)
            cached = np.array([state is not None for state in states])
            if cached.any():
                asked = self._without(batch, cached)
        lookup = look_up(asked)
        firsts = np.cumsum(counts) - counts
        users = []
        for request, state in enumerate(states):
            if state is None:
                first = int(firsts[request])
                began = perf_counter()
                dense, own, whole = self._user_inputs(batch, lookup, request, first, len(counts))
                state = self._split.user(dense, own, whole=whole)
                # Default rows are for this response alone, which reports them.
                if cache is not None and not any(d[first] for d in lookup.work.defaults.values()):
                    cache.keep(keys[request], state, perf_counter() - began)
            users.append(state)
        computed = states.count(None)
        scores = self._candidates(batch, lookup, users, counts)
        return scores, lookup, (len(states) - computed, computed, 0, 0)

    def _of_histories(
        self,
        known: KnownHistories,
        batch: ModelInput,
        counts: NDArray[np.int64],
        look_up: LookUp,
    ) -> tuple[tuple[Scores, ...], LookedUp, Users] | None:
        """Scores a batch with the known beginnings of histories; None if one was evicted since."""
        packed, prefixes, lengths = known.packed, known.prefixes, known.lengths
        lookup = look_up(batch, packed=packed)
        known.keep(lookup)
        if self._are_joined and packed.are_all_used:
            if len(counts) == 1:
                dense, embeddings, _ = self._user_inputs(batch, lookup, 0, 0, 1, packed)
                own = self._own_inputs(batch, lookup, None)
            else:
                dense, embeddings = self._inputs_of_users(batch, lookup, counts)
                own = self._own_inputs(batch, lookup, counts)
            scores = self._split.together(dense, embeddings, *own, lengths, counts, prefixes)
            return None if scores is None else (scores, lookup, known.users)
        with torch.inference_mode():
            users = []
            first = 0
            for request, length in enumerate(lengths.tolist()):
                dense, embeddings, whole = self._user_inputs(
                    batch, lookup, request, first, len(counts), packed
                )
                first += int(counts[request])
                if prefixes is None or not length:
                    users.append(self._split.user(dense, embeddings, whole=whole))
                    continue
                state = self._split.behind(dense, embeddings, prefixes.of(request))
                if state is None:
                    return None
                users.append(state)
            return self._candidates(batch, lookup, users, counts), lookup, known.users

    def _one(self, batch: ModelInput, lookup: LookedUp) -> tuple[Scores, ...]:
        dense, embeddings, whole = self._user_inputs(batch, lookup, 0, 0, 1)
        if whole:
            own = self._own_inputs(batch, lookup, None)
            scores = self._split.together(dense, embeddings, *own)
            if scores is not None:
                return scores
        # Not before: torch takes longer to enter it than one call takes beside its work.
        with torch.inference_mode():
            user = self._split.user(dense, embeddings, whole=whole)
            return self._candidates(batch, lookup, [user], np.array([batch.batch_size]))

    def _inputs_of_users(
        self, batch: ModelInput, lookup: LookedUp, counts: NDArray[np.int64]
    ) -> tuple[list[Tensor], Tensor]:
        """The first stage's inputs of all requests, whose only sequence is packed."""
        firsts = np.cumsum(counts) - counts
        inputs: dict[str, Tensor] = {}
        for at in self._dense:
            array = batch.dense[at]
            rows = np.zeros_like(firsts) if len(array) == 1 else firsts
            inputs[self._dense_names[at]] = tensor_of(array[rows])
        for one, (names, _, is_users) in zip(lookup.sequences, self._sequences, strict=True):
            if is_users:
                inputs.update(zip(names, one.inputs, strict=True))
        dense = [inputs[name] for name in self._split.shared]
        return dense, self._by_user.of(lookup.pooled)[tensor_of(firsts)]

    def _user_inputs(
        self,
        batch: ModelInput,
        lookup: LookedUp,
        request: int,
        first: int,
        requests: int,
        packed: Packed | None = None,
    ) -> tuple[list[Tensor], Tensor, bool]:
        """The first stage's inputs of a request, whose first candidate is `first`.

        Dense ones, embeddings, and whether no padded sequence is empty.
        """
        inputs: dict[str, Tensor] = {}
        whole = True
        for at in self._dense:
            array = batch.dense[at]
            row = 0 if len(array) == 1 else first
            inputs[self._dense_names[at]] = tensor_of(array[row : row + 1])
        for number, (names, spec, is_users) in enumerate(self._sequences):
            one = lookup.sequences[number]
            if is_users:
                if packed is not None and packed.sequence == number:
                    one = _unpacked(one, packed, request)
                lengths = one.lengths
                at = request if lengths.shape[0] == requests else first
                at = 0 if lengths.shape[0] == 1 else at
                length = int(lengths[at])
                whole = whole and (spec.pad_to != "longest" or length > 0)
                # Most requests have one history, and take it as it is.
                is_alone = lengths.shape[0] == 1 and length == one.rows.shape[1]
                of_user = one if is_alone else part_of(one, spec, slice(at, at + 1))
                inputs.update(zip(names, of_user.inputs, strict=True))
        dense = [inputs[name] for name in self._split.shared]
        return dense, self._by_user.of(lookup.pooled, first), whole

    def _candidates(
        self,
        batch: ModelInput,
        lookup: LookedUp,
        users: Sequence[State],
        counts: NDArray[np.int64],
    ) -> tuple[Scores, ...]:
        """The second stage, in pieces where the tower's sizes ask for them."""
        samples = batch.batch_size
        own, embeddings = self._own_inputs(batch, lookup, counts)
        inputs, pieces = [*own, embeddings], []
        if not self._split.apart and (self._pads or samples > self._sizes.sizes[-1]):
            pieces = self._sizes.pieces(samples)
            padding = sum(pieces) - samples
            if not self._pads:
                pieces[-1] -= padding
            elif padding:
                inputs = [_padded(array, samples + padding) for array in inputs]
                # Rows of padding are the last request's.
                counts = counts.copy()
                counts[-1] += padding
        scores = self._split.candidates(
            inputs[:-1], inputs[-1], users, counts.tolist(), pieces=pieces
        )
        return tuple([score[:samples].numpy() for score in scores])

    def _own_inputs(
        self, batch: ModelInput, lookup: LookedUp, counts: NDArray[np.int64] | None
    ) -> tuple[list[Tensor], Tensor]:
        """The candidates' inputs, and their embeddings; `counts` is None for one request."""
        embeddings = self._own.of(lookup.pooled)
        if not self._own_names:
            return [], embeddings
        samples, repeats = batch.batch_size, None if counts is None else tensor_of(counts)
        inputs: dict[str, Tensor] = {}
        for name, array in zip(self._dense_names, batch.dense, strict=True):
            inputs[name] = tensor_of(array).expand(samples, -1)
        for one, (names, _, is_users) in zip(lookup.sequences, self._sequences, strict=True):
            if not is_users:
                spread = one.spread(samples, samples, repeats)
                inputs |= zip(names, spread.inputs, strict=True)
        return [inputs[name] for name in self._own_names], embeddings

    def _keys(self, batch: ModelInput, counts: NDArray[np.int64]) -> list[bytes]:
        """Collision-resistant hash of each request's user inputs."""
        hashes = [blake2b(digest_size=_KEY_BYTES) for _ in counts]
        firsts = np.cumsum(counts) - counts
        for at in self._dense:
            array = batch.dense[at]
            for one, first in zip(hashes, firsts.tolist(), strict=True):
                one.update(array[0 if len(array) == 1 else first].tobytes())
        for group in batch.groups:
            ends = np.cumsum(group.lengths.ravel()).reshape(group.lengths.shape)
            for place, feature in enumerate(group.features):
                if feature not in self._jagged:
                    continue
                for request, one in enumerate(hashes):
                    end, length = int(ends[place, request]), int(group.lengths[place, request])
                    one.update(length.to_bytes(8, "little"))
                    one.update(group.values[end - length : end].tobytes())
                    if group.weights is not None:
                        one.update(group.weights[end - length : end].tobytes())
        return [one.digest() for one in hashes]

    def _without(self, batch: ModelInput, cached: NDArray[np.bool_]) -> ModelInput:
        """The batch with empty bags in place of cached users'."""
        groups = []
        for group in batch.groups:
            users = np.array([feature in self._jagged for feature in group.features])
            if not users.any():
                groups.append(group)
                continue
            left = users[:, None] & cached
            kept = ~np.repeat(left.ravel(), group.lengths.ravel())
            groups.append(
                JaggedBatch.trusted(
                    group.features,
                    group.values[kept],
                    np.where(left, 0, group.lengths),
                    None if group.weights is None else group.weights[kept],
                )
            )
        return replace(batch, groups=tuple(groups))


class _Columns:
    def __init__(self, chosen: Tensor) -> None:
        columns = chosen.nonzero()[:, 0]
        first, count = int(chosen.int().argmax()) if len(chosen) else 0, len(columns)
        side_by_side = torch.equal(columns, torch.arange(first, first + count))
        # A slice is a view, not a copy.
        self._columns = slice(first, first + count) if side_by_side else columns
        self._are_all = count == len(chosen)
        self._none = None if count else torch.empty(1, 0)

    def of(self, array: Tensor, row: int | None = None) -> Tensor:
        if row is None:
            return array if self._are_all else array[:, self._columns]
        return array[row : row + 1, self._columns] if self._none is None else self._none


def _unpacked(one: SequenceRows, packed: Packed, request: int) -> SequenceRows:
    """The positions of a request."""
    if len(packed.places) == 1:
        return one
    end = int(packed.places[: request + 1].sum())
    own = slice(end - int(packed.places[request]), end)
    companions = tuple(companion[:, own] for companion in one.companions)
    return SequenceRows(one.rows[:, own], one.lengths[request : request + 1], companions)


def _padded(array: Tensor, rows: int) -> Tensor:
    # Rows of padding repeat the last one: zeros may be no length of a sequence.
    return torch.cat([array, array[-1:].expand(rows - len(array), *array.shape[1:])])
