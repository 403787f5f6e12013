"""Random steps of ids, and their reference on Python's integers."""

from collections.abc import Sequence

from hypothesis import strategies as st

from sharded_infer.specs.id_steps import IdStep

_LOW, _HIGH = -(2**63), 2**63 - 1
IDS = st.integers(-20, 20) | st.integers(_LOW, _HIGH) | st.sampled_from([_LOW, _HIGH])
_DIVISORS = st.integers(1, 20) | st.integers(1, _HIGH)


def steps_by_chance() -> st.SearchStrategy[list[IdStep]]:
    """At most 16 steps, of all operations."""
    step = st.one_of(
        st.tuples(st.sampled_from(["add", "multiply", "at_least", "at_most"]), IDS),
        st.tuples(st.sampled_from(["divide", "remainder"]), _DIVISORS),
    )
    return st.lists(step, min_size=1, max_size=16)


def row_of(id_: int, steps: Sequence[IdStep]) -> int:
    """The row, or a number outside the table, of one id."""
    for operation, number in steps:
        match operation:
            case "add":
                id_ += number
            case "multiply":
                id_ *= number
            case "divide":
                id_ //= number
            case "remainder":
                id_ %= number
            case "at_least":
                id_ = max(id_, number)
            case "at_most":
                id_ = min(id_, number)
        # Two's complement of 64 bits.
        id_ = (id_ - _LOW) % 2**64 + _LOW
    return id_
