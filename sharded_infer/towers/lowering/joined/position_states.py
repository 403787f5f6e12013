"""States of positions: what a user's stage needs of a history's beginning to compute the rest.

A pass of rows or of causal attention computes each position from those up to it. So the keys and
values of attentions, and results with a row for each position, are all that later positions read.
"""

from collections.abc import Sequence

from kernels.abi.passes import LAST_ROW, LAST_ROWS, POSITIONS
from kernels.sequences.passes import (
    AnyPass,
    Attending,
    Memory,
    Operand,
    PairBiasing,
    RowStepping,
    StateColumns,
)


class NotCausalError(Exception):
    """A position depends on later ones; the message says how."""


def position_states(
    inputs: Sequence[Memory], outputs: Sequence[Memory], passes: Sequence[AnyPass]
) -> list[StateColumns]:
    """States of the positions of one call's passes; raises NotCausalError."""
    states = _States()
    biases = {one.operands[1].memory for one in passes if isinstance(one, PairBiasing)}
    for one in passes:
        if isinstance(one, RowStepping):
            _of_rows(one, states)
        elif isinstance(one, Attending):
            _of_attention(one, states, biases)
        else:
            _of_biases(one, states)
    for memory in inputs:
        if memory.width == POSITIONS:
            raise NotCausalError("an input has a number for each position in one row")
    for memory in outputs:
        if memory.width == POSITIONS:
            raise NotCausalError("a result has a number for each position in one row")
        states.add(Operand(memory), memory.width)
    return states.columns()


class _States:
    def __init__(self) -> None:
        self._columns: dict[Memory, set[tuple[int, int]]] = {}

    def add(self, operand: Operand, width: int) -> None:
        """Adds columns that are read at known positions."""
        if operand.memory.constant is None and operand.memory.rows == POSITIONS:
            ends = operand.column, operand.column + width
            self._columns.setdefault(operand.memory, set()).add(ends)

    def columns(self) -> list[StateColumns]:
        """All columns; those that lie side by side are together."""
        states = []
        for memory, ranges in self._columns.items():
            first, end = -1, -1
            for begin, stop in sorted(ranges):
                if begin > end:
                    if end > first:
                        states.append(StateColumns(memory, first, end - first))
                    first = begin
                end = max(end, stop)
            states.append(StateColumns(memory, first, end - first))
        return states


def _of_rows(steps: RowStepping, states: _States) -> None:
    widths = [*steps.steps.widths, *steps.steps.output_widths]
    for operand, width in zip(steps.operands, widths, strict=True):
        if steps.rows == POSITIONS:
            _check_start(operand)
        elif operand.row != LAST_ROW:
            states.add(operand, width)


def _of_attention(one: Attending, states: _States, biases: set[Memory]) -> None:
    _, key, value, _, *bias = one.operands
    if one.queries == POSITIONS:
        if not one.attention.causal:
            raise NotCausalError("attention: every position reads later ones")
        for operand in one.operands[:1]:
            _check_start(operand)
    for operand in bias:
        if one.queries == POSITIONS:
            _check_start(operand)
        if operand.memory.constant is None and (
            operand.memory not in biases or operand.row not in (0, LAST_ROW)
        ):
            raise NotCausalError("attention: its bias is computed apart")
    states.add(key, one.heads * one.width)
    states.add(value, one.heads * one.value_width)


def _of_biases(one: PairBiasing, states: _States) -> None:
    numbers, _, *fixed = one.operands
    if numbers.memory.rows != POSITIONS:
        raise NotCausalError("biases of pairs: their numbers lie in one row")
    for operand in fixed:
        _check_start(operand)
    states.add(numbers, 1)


def _check_start(operand: Operand) -> None:
    if operand.row == LAST_ROWS:
        raise NotCausalError("positions are counted from the end of the history")
