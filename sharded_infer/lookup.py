"""Executes a plan: routes ids to the shards, runs the fused kernels, merges what they return.

for each group of features with one batch size:
    apply the features' out-of-range policies
    for each rank, memory and format: one fused lookup of all features it holds
    whole and column shards are written to their columns; row shards add partial sums
    means of row-sharded features are divided by the whole bag's length
"""

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.bags import Bags
from kernels.fused_tables import FusedTables
from kernels.mean import divide_by_lengths
from kernels.pooled_lookup import PooledLookup
from sharded_infer.arrays import tensor_of
from sharded_infer.batch import ModelInput
from sharded_infer.errors import InternalError
from sharded_infer.id_policy import IdPolicy, keep_ids
from sharded_infer.plan import StoredTable
from sharded_infer.spec import ModelSpec
from sharded_infer.table_pieces import PlacedPiece

# Which features a request shares among its candidates varies by client, not by request: few
# patterns occur. The bound keeps a hostile client from filling memory with them.
_MAX_ROUTES = 64


@dataclass(frozen=True, slots=True)
class _Entry:
    """One feature's part of a fused lookup."""

    feature: int
    placed: PlacedPiece
    column: int  # first column in the model's output


@dataclass(frozen=True, slots=True)
class _Step:
    """One fused lookup of a route, and where its output goes."""

    lookup: PooledLookup
    positions: Tensor | None  # features of the group that it reads; None: all of them, in order
    first_rows: Tensor | None  # int64 [entries]; None: the step holds whole tables
    last_rows: Tensor | None
    runs: tuple[tuple[int, int, int], ...]  # (output column, step column, width)


@dataclass(frozen=True, slots=True)
class _Route:
    """Everything to do for one group of features."""

    policy: IdPolicy
    steps: tuple[_Step, ...]
    summed_columns: tuple[tuple[int, int], ...]  # of row-sharded features: (column, width)
    means: tuple[tuple[int, int, int], ...]  # row-sharded means: (position, column, width)


class ShardedLookup:
    """Pooled embeddings of a model's features, from the shards of a plan."""

    def __init__(
        self,
        spec: ModelSpec,
        tables: Mapping[str, StoredTable],
        placed: Sequence[PlacedPiece],
        *,
        backend: str | None = None,
    ) -> None:
        """Groups the placed pieces into fused lookups.

        Args:
            spec: the model.
            tables: its tables as stored, by name.
            placed: every part of every table; together they cover all cells once.
            backend: a kernel backend's name to force it.

        Raises:
            InputError: no backend, or not the forced one, can look the tables up.
        """
        self._features = spec.features
        self._backend = backend
        self.width = spec.embedding_width
        by_table: dict[str, list[PlacedPiece]] = defaultdict(list)
        for part in placed:
            by_table[part.table.name].append(part)
        units: dict[tuple[int, int, str, bool], list[_Entry]] = defaultdict(list)
        self._turns = 1 + max((part.turn or 0 for part in placed), default=0)
        self._turn = itertools.count()
        column = 0
        for index, feature in enumerate(self._features):
            for part in by_table[feature.table.name]:
                key = (
                    part.rank,
                    part.piece.memory.data_ptr(),
                    part.table.row_format,
                    part.holds_all_rows,
                )
                units[key].append(_Entry(index, part, column + part.first_column))
            column += feature.table.dim
        self._units = [units[key] for key in sorted(units)]
        self._routes: dict[tuple[int, tuple[int, ...]], _Route] = {}
        # The usual route, made here so that a backend that cannot is refused now.
        self._route(0, tuple(range(len(self._features))))

    @property
    def backends(self) -> dict[str, str]:
        """The kernel backend in use for each row format."""
        route = self._route(0, tuple(range(len(self._features))))
        return {step.lookup.tables.row_format.value: step.lookup.backend for step in route.steps}

    def __call__(self, model_input: ModelInput, *, rows: int | None = None) -> tuple[Tensor, int]:
        """Looks up and pools every feature.

        Args:
            model_input: bags of every feature.
            rows: at least B; zeros fill what is above B. None: B.

        Returns:
            fp32 `[rows, width]`, features in the spec's order; and how many ids were outside their
            tables.

        Raises:
            RequestError: an id is outside a table whose policy is `error`.
        """
        batch = model_input.batch_size
        padded = torch.empty(batch if rows is None else rows, self.width)
        padded[batch:] = 0.0
        pooled = padded[:batch]
        # Replicated tables take turns among the ranks, call by call.
        turn = next(self._turn) % self._turns
        outside = model_input.ids_outside
        for group in model_input.groups:
            route = self._route(turn, group.features)
            weights = None if group.weights is None else tensor_of(group.weights)
            bags = Bags(tensor_of(group.values), tensor_of(group.lengths), weights)
            if not model_input.ids_checked:
                bags, found = route.policy.apply(bags)
                outside += found
            repeats = None
            if model_input.repeats is not None and group.batch_size != len(pooled):
                repeats = tensor_of(model_input.repeats)
            _look_up(route, bags, repeats, pooled)
        return padded, outside

    def _units_of(self, turn: int) -> Iterator[list[_Entry]]:
        for unit in self._units:
            yield [entry for entry in unit if entry.placed.turn in (None, turn)]

    def _route(self, turn: int, features: tuple[int, ...]) -> _Route:
        route = self._routes.get((turn, features))
        if route is None:
            route = self._make_route(turn, features)
            if len(self._routes) < _MAX_ROUTES * self._turns:
                self._routes[turn, features] = route
        return route

    def _make_route(self, turn: int, features: tuple[int, ...]) -> _Route:
        positions = {feature: position for position, feature in enumerate(features)}
        if sorted(positions) != list(features):
            raise InternalError(f"features of a group must ascend, got {features}")
        units = [
            entries
            for unit in self._units_of(turn)
            if (entries := [entry for entry in unit if entry.feature in positions])
        ]
        # Features with row shards, in order.
        split = {
            entry.feature: None
            for entries in units
            for entry in entries
            if not entry.placed.holds_all_rows
        }
        steps = [self._make_step(entries, positions, split) for entries in units]
        starts = [0]
        for feature in self._features:
            starts.append(starts[-1] + feature.table.dim)
        return _Route(
            policy=IdPolicy([self._features[f] for f in features]),
            steps=tuple(steps),
            summed_columns=tuple((starts[f], self._features[f].table.dim) for f in split),
            means=tuple(
                (positions[f], starts[f], self._features[f].table.dim)
                for f in split
                if self._features[f].table.pooling == "mean"
            ),
        )

    def _make_step(
        self, entries: list[_Entry], positions: Mapping[int, int], split: Mapping[int, None]
    ) -> _Step:
        pieces = [entry.placed.piece for entry in entries]
        whole = entries[0].placed.holds_all_rows
        tables = FusedTables(
            memory=pieces[0].memory,
            row_format=entries[0].placed.table.row_format,
            byte_offsets=tuple(piece.byte_offset for piece in pieces),
            rows=tuple(piece.rows for piece in pieces),
            dims=tuple(entry.placed.columns for entry in entries),
            # The route divides all columns of a split feature, also those of whole shards.
            means=tuple(
                entry.feature not in split and self._features[entry.feature].table.pooling == "mean"
                for entry in entries
            ),
        )
        chosen = [positions[entry.feature] for entry in entries]
        first_rows = torch.tensor([piece.first_row for piece in pieces])
        return _Step(
            lookup=PooledLookup(tables, backend=self._backend),
            positions=None if chosen == list(range(len(positions))) else torch.tensor(chosen),
            first_rows=None if whole else first_rows,
            last_rows=None if whole else first_rows + torch.tensor(tables.rows),
            runs=_column_runs(entries),
        )


def _look_up(route: _Route, bags: Bags, repeats: Tensor | None, pooled: Tensor) -> None:
    """Writes the columns of a group's features.

    Args:
        route: what to do.
        bags: R bags a feature: a bag a sample, or one for all, or as `repeats` says.
        repeats: int64 `[R]`, samples that share each bag; None where nothing, or all, is shared.
        pooled: fp32 `[B, width]`, written to.
    """
    for column, width in route.summed_columns:
        pooled[:, column : column + width] = 0.0
    for step in route.steps:
        chosen = _bags_of(step, bags)
        if step.first_rows is None and len(step.runs) == 1 and bags.lengths.shape[1] == len(pooled):
            column, _, width = step.runs[0]
            step.lookup(chosen, ids_checked=True, out=pooled[:, column : column + width])
            continue
        part = step.lookup(chosen, ids_checked=True)
        if repeats is not None:
            part = part.repeat_interleave(repeats, dim=0)
        for column, source, width in step.runs:
            target = pooled[:, column : column + width]
            if step.first_rows is None:
                # One bag for all samples is broadcast here.
                target.copy_(part[:, source : source + width])
            else:
                target.add_(part[:, source : source + width])
    for position, column, width in route.means:
        lengths = bags.lengths[position : position + 1]
        if repeats is not None:
            lengths = lengths.repeat_interleave(repeats, dim=1)
        target = pooled[:, column : column + width]
        divide_by_lengths(target, lengths.expand(1, len(pooled)), torch.tensor([width]))


def _column_runs(entries: Sequence[_Entry]) -> tuple[tuple[int, int, int], ...]:
    # Neighbouring columns are copied together. A row shard's run may not join its twin's.
    runs: list[tuple[int, int, int]] = []
    source = 0
    for entry in entries:
        width = entry.placed.columns
        if runs and runs[-1][0] + runs[-1][2] == entry.column:
            column, first, so_far = runs[-1]
            runs[-1] = (column, first, so_far + width)
        else:
            runs.append((entry.column, source, width))
        source += width
    return tuple(runs)


def _bags_of(step: _Step, bags: Bags) -> Bags:
    if step.positions is not None:
        counts = bags.lengths.sum(1)
        starts = torch.cumsum(counts, 0) - counts
        chosen = counts[step.positions]
        # Positions of the chosen features' ids: each feature's start, then counting up.
        shift = starts[step.positions] - (torch.cumsum(chosen, 0) - chosen)
        taken = torch.repeat_interleave(shift, chosen) + torch.arange(int(chosen.sum()))
        weights = None if bags.weights is None else bags.weights[taken]
        bags = Bags(bags.values[taken], bags.lengths[step.positions], weights)
    if step.first_rows is None or step.last_rows is None:
        return bags
    counts = bags.lengths.sum(1)
    local = bags.values - torch.repeat_interleave(step.first_rows, counts)
    rows = torch.repeat_interleave(step.last_rows - step.first_rows, counts)
    return keep_ids(Bags(local, bags.lengths, bags.weights), (local >= 0) & (local < rows))
