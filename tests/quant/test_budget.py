"""Budgets against exhaustive search, on small problems."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.row_format import RowFormat
from quant.budget import (
    BudgetError,
    Candidate,
    TableCandidates,
    most_exact,
    smallest,
    total_bytes,
    total_loss,
    within_bytes,
    within_loss,
)

FORMATS = list(RowFormat)


def table(name: str, *candidates: tuple[int, float]) -> TableCandidates:
    return TableCandidates(
        name,
        tuple(
            Candidate(f, size, loss) for f, (size, loss) in zip(FORMATS, candidates, strict=False)
        ),
    )


candidate = st.tuples(st.integers(1, 50), st.integers(0, 1000).map(float))
problems = st.lists(st.lists(candidate, min_size=1, max_size=4), min_size=1, max_size=5).map(
    lambda tables: [table(f"t{i}", *candidates) for i, candidates in enumerate(tables)]
)


def every_choice(tables: list[TableCandidates]) -> list[list[Candidate]]:
    return [list(choice) for choice in itertools.product(*(t.candidates for t in tables))]


def largest_saving(tables: list[TableCandidates]) -> float:
    """Largest saving of a single change of one table."""
    return max(
        max(c.loss for c in t.candidates) - min(c.loss for c in t.candidates) for t in tables
    )


@given(problems, st.integers(0, 250))
def test_a_memory_budget_holds_and_is_near_the_best_there_is(
    tables: list[TableCandidates], limit: int
) -> None:
    fitting = [c for c in every_choice(tables) if total_bytes(c) <= limit]
    if not fitting:
        least = total_bytes(smallest(tables))
        with pytest.raises(BudgetError, match=f"take {least} bytes?, {limit} are allowed"):
            within_bytes(tables, limit)
        return
    chosen = within_bytes(tables, limit)
    assert all(c in t.candidates for c, t in zip(chosen, tables, strict=True))
    assert total_bytes(chosen) <= limit
    best = min(map(total_loss, fitting))
    assert total_loss(chosen) <= best + largest_saving(tables)
    # No single change would still fit and lose less.
    for index, one in enumerate(tables):
        for other in one.candidates:
            changed = [*chosen[:index], other, *chosen[index + 1 :]]
            assert total_bytes(changed) > limit or total_loss(changed) >= total_loss(chosen)


@given(problems, st.integers(0, 5000))
def test_an_error_budget_holds_and_no_single_change_is_smaller(
    tables: list[TableCandidates], limit: int
) -> None:
    if total_loss(most_exact(tables)) > limit:
        with pytest.raises(BudgetError, match="the most exact formats lose"):
            within_loss(tables, limit)
        return
    chosen = within_loss(tables, limit)
    assert all(c in t.candidates for c, t in zip(chosen, tables, strict=True))
    assert total_loss(chosen) <= limit
    for index, one in enumerate(tables):
        for other in one.candidates:
            changed = [*chosen[:index], other, *chosen[index + 1 :]]
            assert total_loss(changed) > limit or total_bytes(changed) >= total_bytes(chosen)


@given(problems)
def test_room_for_everything_is_the_most_exact_choice(tables: list[TableCandidates]) -> None:
    chosen = within_bytes(tables, 10**9)
    assert total_loss(chosen) == total_loss(most_exact(tables))


def test_bytes_go_where_they_save_the_most_loss() -> None:
    tables = [
        table("cold", (10, 5.0), (20, 1.0)),
        table("hot", (10, 500.0), (20, 100.0)),
    ]
    assert [c.bytes for c in within_bytes(tables, 30)] == [10, 20]
    assert [c.bytes for c in within_loss(tables, 110.0)] == [10, 20]


def test_equal_tables_are_chosen_for_in_their_order() -> None:
    tables = [table(f"t{i}", (10, 5.0), (20, 1.0)) for i in range(4)]
    assert [c.bytes for c in within_bytes(tables, 60)] == [20, 20, 10, 10]


def test_a_large_step_that_does_not_fit_leaves_room_to_smaller_ones() -> None:
    tables = [table("large", (10, 1000.0), (100, 0.0)), table("small", (10, 5.0), (20, 1.0))]
    assert [c.bytes for c in within_bytes(tables, 40)] == [10, 20]
