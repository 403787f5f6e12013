"""Execution of a plan: ids to the shards, fused kernels, merged results.

for each group of features with one batch size:
    apply the features' out-of-range policies; a sequence has a bag for each of its places
    start the lookups on all other hosts at once
    for each rank here, memory and format: one fused lookup of all its features
    write whole tables and column shards to their columns; add partial sums of row shards
    divide sums of row-sharded features with mean pooling by the length of the whole bag
"""

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from kernels.row_format import RowFormat
from sharded_infer.artifacts.mapped_tables import TablePiece
from sharded_infer.errors import InternalError, PlanError
from sharded_infer.inputs.id_policy import InputPolicy
from sharded_infer.inputs.model_input import JaggedBatch, ModelInput
from sharded_infer.inputs.placed_ids import RowMap
from sharded_infer.inputs.sequences.layout import GRAIN, Ints, Packed, SequenceLayout
from sharded_infer.inputs.sequences.tower_rows import SequenceRows
from sharded_infer.lookups.batch_lookup import look_up_batch
from sharded_infer.lookups.columns import first_columns, split_features
from sharded_infer.lookups.default_rows import FeatureDefault, default_lookups
from sharded_infer.lookups.lookup_group import Group
from sharded_infer.lookups.lookup_plan import LookupPlan
from sharded_infer.lookups.lookup_work import LookedUp
from sharded_infer.lookups.placement import PlacedPiece, raw_hashes, split_tables
from sharded_infer.lookups.shard_hosts import ShardHosts
from sharded_infer.lookups.steps import Entry, RemoteStep, Step, make_remote_step, make_step
from sharded_infer.specs.model_spec import ModelSpec
from sharded_infer.tensors import tensor_of

# A client decides which features a request shares among its candidates; patterns are few. The limit
# bounds the memory that a hostile client can use.
_MAX_PLANS = 64
_NONE: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class _Served:
    """One feature's piece, and its turn; None: every turn."""

    feature: int
    placed: PlacedPiece
    turn: int | None


class PlanLookups:
    """The lookups of a plan, with ranks in this process and on other hosts."""

    def __init__(
        self,
        spec: ModelSpec,
        placed: Sequence[PlacedPiece],
        held: Mapping[PlacedPiece, TablePiece],
        *,
        hosts: ShardHosts | None = None,
        backend: str | None = None,
        id_maps: Mapping[str, RowMap] | None = None,
    ) -> None:
        """Groups the placed pieces into fused lookups.

        Args:
            placed: every part of every table; together they cover each cell exactly once.
            held: the rows of those that this process looks up.
            hosts: the hosts that hold the others.
            backend: name of a kernel backend to force; None chooses one.
            id_maps: by table. Raw ids of other tables that have one go to hosts.

        Raises:
            InputError: no backend, or not the forced one, supports the tables.
            InternalError: an id map is missing that no host can apply.
            PlanError: no host holds a piece; names the host.
        """
        self._features = spec.table_features
        self._policy = InputPolicy(spec, id_maps)
        self._raw = {t.name: t for t in spec.mapped_tables if t.name not in (id_maps or {})}
        self._sums = spec.serving.remote_sums
        self._held, self._hosts, self._backend = held, hosts, backend
        # Those of a sequence are only looked up apart from other features.
        self._starts = [*first_columns(spec), *(0 for _ in spec.sequence_features)]
        self._layout = SequenceLayout(spec, frozenset(self._raw)) if spec.sequences else None
        self._split = split_features(spec, split_tables(placed))
        self.width = spec.embedding_width
        self.dims = tuple(feature.table.dim for feature in spec.features)
        served = _served(placed, held)
        self._turns = 1 + max((turn or 0 for _, turn in served), default=0)
        self._turn = itertools.count()
        # Without other hosts nothing is ever lost.
        self._defaults = {} if hosts is None else default_lookups(spec)
        by_table: dict[str, list[tuple[PlacedPiece, int | None]]] = defaultdict(list)
        # Of replicated tables, by turn.
        self._replicas: dict[str, dict[int, PlacedPiece]] = defaultdict(dict)
        for part, turn in served:
            by_table[part.table.name].append((part, turn))
            if turn is not None:
                self._replicas[part.table.name][turn] = part
            self._check_host(part)
        memories: dict[tuple[int, str | int, RowFormat, bool, bool], list[_Served]]
        memories = defaultdict(list)
        for index, feature in enumerate(self._features):
            for part, turn in by_table[feature.table.name]:
                # Columns that were cut out of a file have a memory of their own.
                memory = part.file if part.holds_all_columns else part.number
                raw = part.table.name in self._raw
                key = (part.rank, memory, part.table.row_format, part.holds_all_rows, raw)
                memories[key].append(_Served(index, part, turn))
        # Sums are added in this order, by rank and row, regardless of the memory.
        units: dict[tuple[object, ...], list[_Served]] = defaultdict(list)
        for key in sorted(memories, key=lambda key: key[0]):
            entries = memories[key]
            here = entries[0].placed in held
            units[key if here else (key[0], *key[3:])] += entries
        self._units = list(units.values())
        self._plans: dict[tuple[int, tuple[int, ...], bool, bool, frozenset[int]], LookupPlan] = {}
        self._backends: dict[str, str] = {}
        # The usual plan, made here so that an unsupported table fails now.
        self._plan(0, tuple(range(len(spec.features))), raw=True)
        for of_sequence in self._layout.features if self._layout else ():
            self._plan(0, of_sequence, raw=True, apart=True)

    @property
    def backends(self) -> Mapping[str, str]:
        """Name of the kernel backend for each row format."""
        return self._backends

    def look_up(
        self,
        batch: ModelInput,
        *,
        rows: int,
        grain: int = GRAIN,
        packed: Packed | None = None,
        deadline: float = inf,
        may_default: bool = False,
    ) -> LookedUp:
        """Looks up every feature, and pools those that are in no sequence; thread-safe.

        Args:
            batch: B samples, with bags for every feature.
            rows: rows of the result, at least B; rows from B on are zeros.
            grain: of the padded lengths of sequences.
            packed: the sequence that is looked up without padding.
            deadline: for waits on other hosts, on the monotonic clock.
            may_default: allow default rows for a lost host.

        Raises:
            RequestError: an id is outside a table whose policy is `error`.
            ShardedInferError: rows could not be read; of another host, the message names it.
        """
        batch, turn = self._policy.apply(batch), self._next_turn()
        padded = pooled = torch.empty(rows, self.width)
        if rows > batch.batch_size:
            padded[batch.batch_size :] = 0.0
            pooled = padded[: batch.batch_size]
        groups = [self._group(batch, turn, group, pooled) for group in self._pooled(batch)]
        sequences: list[SequenceRows] = []
        laid_out = self._layout.lay_out(batch, grain, packed) if self._layout else ()
        for number, one in enumerate(laid_out):
            sequences.append(SequenceRows.empty(one))
            flat = sequences[-1].rows.view(-1, one.width)
            places: int | Ints = one.padded_length
            repeats = None
            if packed is not None and packed.sequence == number and len(packed.places) > 1:
                places, repeats = packed.places, packed.repeats
            group = self._group(
                batch, turn, one.bags, flat, apart=True, places=places, repeats=repeats
            )
            groups.append(group)
        work = look_up_batch(groups, deadline, self._hosts, may_default=may_default)
        return LookedUp(padded, batch.ids_outside + work.ids_unknown, work, tuple(sequences))

    def look_up_apart(
        self,
        batch: ModelInput,
        *,
        rows: int,
        request_rows: int,
        deadline: float = inf,
        may_default: bool = False,
    ) -> tuple[LookedUp, Tensor]:
        """Looks up and pools a model's features without repeating shared bags; see `look_up`.

        Args:
            batch: its samples share a group of features.
            rows: rows of the features by pair, at least B; rows from B on are zeros.
            request_rows: rows of the shared features, at least one for each request.

        Returns:
            Of the features by pair, and the shared ones, fp32 `[request_rows, width]`.
        """
        batch, turn = self._policy.apply(batch), self._next_turn()
        own, shared = torch.empty(rows, 0), torch.empty(request_rows, 0)
        groups = []
        for group in self._pooled(batch):
            by_request = group.batch_size != batch.batch_size
            width = sum(self.dims[feature] for feature in group.features)
            padded = torch.empty(request_rows if by_request else rows, width)
            padded[group.batch_size :] = 0.0
            pooled = padded[: group.batch_size]
            groups.append(self._group(batch, turn, group, pooled, apart=True))
            if by_request:
                shared = padded
            else:
                own = padded
        work = look_up_batch(groups, deadline, self._hosts, may_default=may_default)
        return LookedUp(own, batch.ids_outside + work.ids_unknown, work), shared

    def _next_turn(self) -> int:
        # Ranks take turns to serve replicated tables, one turn for each batch.
        return next(self._turn) % self._turns

    def _pooled(self, batch: ModelInput) -> tuple[JaggedBatch, ...]:
        return batch.groups if self._layout is None else self._layout.pooled(batch)

    def _group(
        self,
        batch: ModelInput,
        turn: int,
        group: JaggedBatch,
        out: Tensor,
        *,
        apart: bool = False,
        places: int | Ints = 1,
        repeats: Ints | None = None,
    ) -> Group:
        """A group's bags for a lookup into `out`; `apart`: its columns alone."""
        plan = self._plan(turn, group.features, raw=not batch.are_rows, apart=apart)
        samples = batch.batch_size
        if repeats is None and group.batch_size != samples * places:
            repeats = batch.repeats
        weights = None if group.weights is None else tensor_of(group.weights)
        arrays = tensor_of(group.values), tensor_of(group.lengths), weights
        return Group(plan, arrays, repeats, out, samples, places)

    def _check_host(self, part: PlacedPiece) -> None:
        if part not in self._held and (self._hosts is None or part.host not in self._hosts.hosts):
            raise PlanError(
                f"table {part.table.name!r}: rank {part.rank} is on host {part.host}, which is "
                "neither this one nor one that can be asked"
            )
        table = self._raw.get(part.table.name)
        if table is not None and (part in self._held or raw_hashes(part, table) is None):
            raise InternalError(f"table {part.table.name!r}: its id map was not opened")

    def _plan(
        self, turn: int, features: tuple[int, ...], *, raw: bool, apart: bool = False
    ) -> LookupPlan:
        # Only replicated tables have rows on several hosts.
        lost = _NONE if self._hosts is None or not self._replicas else self._hosts.lost
        key = turn, features, raw, apart, lost
        plan = self._plans.get(key)
        if plan is None:
            plan = self._make_plan(turn, features, lost, raw=raw, apart=apart)
            if len(self._plans) < _MAX_PLANS * self._turns:
                self._plans[key] = plan
        return plan

    def _turn_of(self, piece: PlacedPiece, turn: int, lost: frozenset[int]) -> int:
        """Turn for a replicated table: the next one whose host is not lost."""
        replicas = self._replicas[piece.table.name]
        for later in sorted(replicas, key=lambda replica: (replica - turn) % self._turns):
            if replicas[later] in self._held or replicas[later].host not in lost:
                return later
        return turn

    def _make_plan(
        self, turn: int, features: tuple[int, ...], lost: frozenset[int], *, raw: bool, apart: bool
    ) -> LookupPlan:
        positions = {feature: position for position, feature in enumerate(features)}
        if sorted(positions) != list(features):
            raise InternalError(f"features of a group must ascend, got {features}")
        # Apart from other groups, the features' columns begin at 0 and leave no gaps.
        dims = [self._features[feature].table.dim for feature in features]
        begins = dict(zip(features, itertools.accumulate(dims, initial=0), strict=False))
        if not apart:
            begins = {feature: self._starts[feature] for feature in features}
        steps: list[Step] = []
        remote: list[RemoteStep] = []
        tables = self._raw if raw else {}
        for order, unit in enumerate(self._units):
            entries = [
                Entry(
                    positions[served.feature],
                    served.placed,
                    begins[served.feature] + served.placed.first_column,
                    self._is_mean(served.feature),
                    raw_hashes(served.placed, tables.get(served.placed.table.name)),
                )
                for served in unit
                if served.feature in positions
                and (served.turn is None or served.turn == self._turn_of(served.placed, turn, lost))
            ]
            if not entries:
                continue
            first = entries[0].placed
            split, is_raw = not first.holds_all_rows, first.table.name in tables
            if first in self._held:
                step = make_step(
                    entries, self._held, order=order, split=split, backend=self._backend
                )
                self._backends[first.table.row_format.value] = step.lookup.backend
                steps.append(step)
            else:
                remote.append(
                    make_remote_step(entries, order=order, split=split, sums=self._sums, raw=is_raw)
                )
        columns = {f: (begins[f], dims[positions[f]]) for f in features}
        return LookupPlan(
            steps,
            remote,
            summed=[columns[f] for f in self._split.features if f in positions],
            means=[(positions[f], *columns[f]) for f in self._split.means if f in positions],
            defaults={
                positions[f]: FeatureDefault(
                    self._features[f].table, positions[f], begins[f], self._defaults[f]
                )
                for f in positions.keys() & self._defaults.keys()
            },
            features=[self._features[f] for f in features] if remote else (),
        )

    def _is_mean(self, feature: int) -> bool:
        # The plan divides all columns of a split feature, including those of whole shards.
        return (
            feature not in self._split.features
            and self._features[feature].sequence is None
            and self._features[feature].table.pooling == "mean"
        )


def _served(
    placed: Sequence[PlacedPiece], held: Mapping[PlacedPiece, TablePiece]
) -> list[tuple[PlacedPiece, int | None]]:
    """Pieces to look up, and their turn: replicas of this process before others."""
    turns: dict[str, list[int]] = defaultdict(list)
    for piece in held:
        if piece.turn is not None and piece.turn not in turns[piece.table.name]:
            turns[piece.table.name].append(piece.turn)
    served: list[tuple[PlacedPiece, int | None]] = []
    for piece in placed:
        own = sorted(turns.get(piece.table.name, ()))
        if not own or piece.turn is None:
            served.append((piece, piece.turn))
        elif piece in held:
            served.append((piece, own.index(piece.turn)))
    return served
