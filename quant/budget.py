"""Choice of each table's format within a budget, for the least expected loss.

    candidates of a table: bytes and loss in each format; keep those that no smaller one beats
    steps of a table: along the lower convex hull of (bytes, loss), from the smallest format up
    take the steps of all tables by loss saved per byte, the most first, while they fit
    give what room is left to the single change that saves the most, until none fits

A multiple-choice knapsack (Sinha and Zoltners 1979): along the hulls the greedy order is optimal
for the relaxed problem, so the choice is at most one step's saving worse than the optimum. Ties go
to the first table, so the choice depends only on the input.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from kernels.errors import InputError
from kernels.row_format import RowFormat
from kernels.wording import counted


class BudgetError(InputError):
    """A budget that no choice of formats meets."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A table stored in one format, with its part of the model's expected loss."""

    row_format: RowFormat
    bytes: int
    loss: float


@dataclass(frozen=True, slots=True)
class TableCandidates:
    """A table and its candidates, at least one."""

    table: str
    candidates: tuple[Candidate, ...]


def within_bytes(tables: Sequence[TableCandidates], limit: int) -> list[Candidate]:
    """The least loss within `limit` bytes; BudgetError if the smallest choice does not fit."""
    fronts = [useful_candidates(table) for table in tables]
    chosen = [front[0] for front in fronts]
    room = limit - total_bytes(chosen)
    if room < 0:
        raise BudgetError(
            "memory budget: the smallest formats take "
            f"{counted(limit - room, 'byte')}, {limit} are allowed"
        )
    for step in _steps(fronts):
        current = chosen[step.table]
        if step.after.bytes - current.bytes <= room and step.after.loss < current.loss:
            room -= step.after.bytes - current.bytes
            chosen[step.table] = step.after
    while (best := _best_change(fronts, chosen, room)) is not None:
        table, after = best
        room -= after.bytes - chosen[table].bytes
        chosen[table] = after
    return chosen


def within_loss(tables: Sequence[TableCandidates], limit: float) -> list[Candidate]:
    """The fewest bytes within a loss of `limit`; BudgetError if no choice is that exact."""
    fronts = [useful_candidates(table) for table in tables]
    least = total_loss([front[-1] for front in fronts])
    if least > limit:
        raise BudgetError(
            f"error budget: the most exact formats lose {least:.3g}, {limit:.3g} is allowed"
        )
    chosen = [front[0] for front in fronts]
    for step in _steps(fronts):
        if total_loss(chosen) <= limit:
            break
        chosen[step.table] = step.after
    # The last steps may have saved more than needed: revert those that save the most bytes.
    while (best := _best_return(fronts, chosen, limit)) is not None:
        table, before = best
        chosen[table] = before
    return chosen


def total_bytes(chosen: Sequence[Candidate]) -> int:
    """Bytes of a choice."""
    return sum(candidate.bytes for candidate in chosen)


def total_loss(chosen: Sequence[Candidate]) -> float:
    """Loss of a choice."""
    return sum(candidate.loss for candidate in chosen)


def smallest(tables: Sequence[TableCandidates]) -> list[Candidate]:
    """Each table's smallest candidate."""
    return [useful_candidates(table)[0] for table in tables]


def most_exact(tables: Sequence[TableCandidates]) -> list[Candidate]:
    """Each table's candidate of least loss."""
    return [useful_candidates(table)[-1] for table in tables]


def useful_candidates(table: TableCandidates) -> list[Candidate]:
    """Candidates by ascending bytes, each of less loss than all before it."""
    kept: list[Candidate] = []
    for one in sorted(table.candidates, key=lambda c: (c.bytes, c.loss)):
        if not kept or one.loss < kept[-1].loss:
            kept.append(one)
    return kept


@dataclass(frozen=True, slots=True)
class _Step:
    """A step between two neighbouring corners of a table's hull."""

    table: int
    saved_by_byte: float
    after: Candidate


def _steps(fronts: Sequence[Sequence[Candidate]]) -> list[_Step]:
    steps = [
        _Step(table, (before.loss - after.loss) / (after.bytes - before.bytes), after)
        for table, front in enumerate(fronts)
        for before, after in pairwise(_hull(front))
    ]
    return sorted(steps, key=lambda step: (-step.saved_by_byte, step.table, step.after.bytes))


def _hull(front: Sequence[Candidate]) -> list[Candidate]:
    hull: list[Candidate] = []
    for one in front:
        while len(hull) >= 2 and _is_above(hull[-2], hull[-1], one):
            hull.pop()
        hull.append(one)
    return hull


def _is_above(first: Candidate, middle: Candidate, last: Candidate) -> bool:
    """True if the middle point lies on or above the line between the others."""
    slope = (first.loss - last.loss) * (middle.bytes - first.bytes)
    return (first.loss - middle.loss) * (last.bytes - first.bytes) <= slope


def _changes(
    fronts: Sequence[Sequence[Candidate]], chosen: Sequence[Candidate]
) -> Iterator[tuple[int, Candidate]]:
    for table, front in enumerate(fronts):
        for one in front:
            if one is not chosen[table]:
                yield table, one


def _best_change(
    fronts: Sequence[Sequence[Candidate]], chosen: Sequence[Candidate], room: int
) -> tuple[int, Candidate] | None:
    fitting = [
        (table, one)
        for table, one in _changes(fronts, chosen)
        if one.loss < chosen[table].loss and one.bytes - chosen[table].bytes <= room
    ]
    return max(fitting, key=lambda c: (chosen[c[0]].loss - c[1].loss, -c[0]), default=None)


def _best_return(
    fronts: Sequence[Sequence[Candidate]], chosen: Sequence[Candidate], limit: float
) -> tuple[int, Candidate] | None:
    allowed = limit - total_loss(chosen)
    fitting = [
        (table, one)
        for table, one in _changes(fronts, chosen)
        if one.bytes < chosen[table].bytes and one.loss - chosen[table].loss <= allowed
    ]
    return max(fitting, key=lambda c: (chosen[c[0]].bytes - c[1].bytes, -c[0]), default=None)
