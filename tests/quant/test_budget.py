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


def table(name: str, *pairs: tuple[int, float]) -> TableCandidates:
    return TableCandidates(
        name,
        tuple(Candidate(f, size, loss) for f, (size, loss) in zip(FORMATS, pairs, strict=False)),
    )


candidate = st.tuples(st.integers(1, 50), st.integers(0, 1000).map(float))
problems = st.lists(st.lists(candidate, min_size=1, max_size=4), min_size=1, max_size=5).map(
    lambda tables: [table(f"t{i}", *candidates) for i, candidates in enumerate(tables)]
)


def largest_saving(tables: list[TableCandidates]) -> float:
    return max(
        max(c.loss for c in t.candidates) - min(c.loss for c in t.candidates) for t in tables
    )


@given(problems, st.integers(0, 250))
def test_a_memory_budget_holds_and_is_near_the_best(
    tables: list[TableCandidates], limit: int
) -> None:
    choices = itertools.product(*(t.candidates for t in tables))
    fitting = [choice for choice in choices if total_bytes(choice) <= limit]
    if not fitting:
        least = total_bytes(smallest(tables))
        with pytest.raises(BudgetError, match=f"take {least} bytes?, {limit} are allowed"):
            within_bytes(tables, limit)
        return
    chosen = within_bytes(tables, limit)
    assert all(c in t.candidates for c, t in zip(chosen, tables, strict=True))
    assert total_bytes(chosen) <= limit
    assert total_loss(chosen) <= min(map(total_loss, fitting)) + largest_saving(tables)
    # No single change would still fit and lose less.
    for index, one in enumerate(tables):
        for other in one.candidates:
            changed = [*chosen[:index], other, *chosen[index + 1 :]]
            assert total_bytes(changed) > limit or total_loss(changed) >= total_loss(chosen)


@given(problems, st.integers(0, 5000))
def test_an_error_budget_holds_with_least_bytes(tables: list[TableCandidates], limit: int) -> None:
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
