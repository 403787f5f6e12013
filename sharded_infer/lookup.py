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
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.bags import Bags
from kernels.fused_tables import FusedTables
from kernels.pooled_lookup import PooledLookup
from sharded_infer.arrays import tensor_of
from sharded_infer.batch import ModelInput
from sharded_infer.errors import InternalError
from sharded_infer.id_policy import IdPolicy
from sharded_infer.lookup_route import (
    Entry,
    LookupWork,
    Route,
    Step,
    StepWork,
    column_runs,
    look_up,
    row_bytes_of,
)
from sharded_infer.plan import StoredTable
from sharded_infer.spec import ModelSpec
from sharded_infer.table_pieces import PlacedPiece

# Which features a request shares among its candidates varies by client, not by request: few
# patterns occur. The bound keeps a hostile client from filling memory with them.
_MAX_ROUTES = 64


class LookedUp(NamedTuple):
    """Pooled embeddings, and what they took.

    Attributes:
        embeddings: fp32 `[rows, width]`, features in the spec's order.
        ids_outside: ids that were outside their tables.
        work: what was done for them.
    """

    embeddings: Tensor
    ids_outside: int
    work: LookupWork


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
        units: dict[tuple[int, int, str, bool], list[Entry]] = defaultdict(list)
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
                units[key].append(Entry(index, part, column + part.first_column))
            column += feature.table.dim
        self._units = [units[key] for key in sorted(units)]
        self._routes: dict[tuple[int, tuple[int, ...]], Route] = {}
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
        embeddings, ids_outside, _ = self.measured(model_input, rows=rows)
        return embeddings, ids_outside

    def measured(self, model_input: ModelInput, *, rows: int | None = None) -> LookedUp:
        """Looks up and pools every feature, and says what that took.

        Args:
            model_input: bags of every feature.
            rows: at least B; zeros fill what is above B. None: B.

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
        steps: list[StepWork] = []
        saved = 0
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
            saved += look_up(route, bags, repeats, pooled, steps)
        return LookedUp(padded, outside, LookupWork(steps, saved))

    def _units_of(self, turn: int) -> Iterator[list[Entry]]:
        for unit in self._units:
            yield [entry for entry in unit if entry.placed.turn in (None, turn)]

    def _route(self, turn: int, features: tuple[int, ...]) -> Route:
        route = self._routes.get((turn, features))
        if route is None:
            route = self._make_route(turn, features)
            if len(self._routes) < _MAX_ROUTES * self._turns:
                self._routes[turn, features] = route
        return route

    def _make_route(self, turn: int, features: tuple[int, ...]) -> Route:
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
        return Route(
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
        self, entries: list[Entry], positions: Mapping[int, int], split: Mapping[int, None]
    ) -> Step:
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
            file=pieces[0].file,
        )
        chosen = [positions[entry.feature] for entry in entries]
        first_rows = torch.tensor([piece.first_row for piece in pieces])
        return Step(
            lookup=PooledLookup(tables, backend=self._backend),
            positions=None if chosen == list(range(len(positions))) else torch.tensor(chosen),
            first_rows=None if whole else first_rows,
            last_rows=None if whole else first_rows + torch.tensor(tables.rows),
            runs=column_runs(entries),
            rank=entries[0].placed.rank,
            row_bytes=row_bytes_of(entries),
        )
