"""Steps of ids: as Python's integers, with 64 bits; and the ids that a table has rows for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharded_infer.specs.id_steps import IdStep, apply_steps, domain
from tests.support.steps_by_chance import IDS, row_of, steps_by_chance


@given(steps_by_chance(), st.lists(IDS, min_size=1))
def test_steps_are_those_of_integers_of_64_bits(steps: list[IdStep], ids: list[int]) -> None:
    rows = apply_steps(steps, np.array(ids, np.int64))
    assert rows.dtype == np.int64
    assert rows.tolist() == [row_of(id_, steps) for id_ in ids]


@given(steps_by_chance(), st.integers(1, 1000) | st.integers(1, 2**48), st.data())
def test_rows_of_a_domain_are_in_range(steps: list[IdStep], rows: int, data: st.DataObject) -> None:
    span = domain(steps, rows)
    if span is not None:
        first, last = span
        assert first >= 0 or last < 0
        for id_ in (first, last, data.draw(st.integers(first, last))):
            assert 0 <= row_of(id_, steps) < rows


@pytest.mark.parametrize(
    ("steps", "span"),
    [
        ((), (0, 99)),
        ((("add", 40),), (0, 59)),
        ((("add", -40),), (40, 139)),
        ((("add", 100),), (-100, -1)),
        ((("multiply", 3), ("add", 1)), (0, 32)),
        ((("multiply", -3), ("add", 50)), (0, 16)),
        ((("multiply", 0),), (0, 2**63 - 1)),
        ((("multiply", 0), ("add", -1)), None),
        ((("divide", 7),), (0, 699)),
        ((("remainder", 100),), (0, 2**63 - 1)),
        ((("add", 5), ("remainder", 100)), (0, 2**63 - 6)),
        ((("remainder", 1000),), (0, 99)),
        ((("remainder", 1000), ("add", 100)), None),
        ((("at_least", 0), ("at_most", 98)), (0, 98)),
        ((("at_least", 100),), None),
        ((("at_most", -1),), None),
        ((("add", -(2**63)),), None),
        ((("add", -(2**63)), ("remainder", 7)), (0, 2**63 - 1)),
    ],
)
def test_the_ids_that_a_table_of_100_rows_has_rows_for(
    steps: tuple[IdStep, ...], span: tuple[int, int] | None
) -> None:
    assert domain(steps, 100) == span
