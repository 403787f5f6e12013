from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch

from kernels.abi.attention import Weights
from kernels.abi.passes import CANDIDATES, LAST_ROW, LAST_ROWS, POSITIONS
from kernels.abi.row_steps import StepKind
from kernels.errors import InputError
from kernels.machine import InstructionSet, instruction_sets
from kernels.sequences.attention import Attention
from kernels.sequences.pair_biases import StepFunction, step_function
from kernels.sequences.passes import Attending, Memory, Operand, PairBiasing, Passes, RowStepping
from kernels.sequences.row_step import Columns, RowStep
from kernels.sequences.row_steps import RowSteps
from tests.kernels.drawn import every_set, numbers

every_length = pytest.mark.parametrize("positions", [1, 6, 17, 100])
WIDTH, HEADS, LONGEST = 24, 2, 100


def projected(instruction_set: InstructionSet) -> RowSteps:
    """Rows plus another input, and their queries, keys and values."""
    steps = [
        RowStep(StepKind.SUM, (Columns(0, 0, WIDTH), Columns(1, 0, WIDTH))),
        RowStep(StepKind.NORM, (Columns(2, 0, WIDTH),), numbers(WIDTH), None, 1e-5),
        RowStep(StepKind.PRODUCT, (Columns(3, 0, WIDTH), numbers(WIDTH, seed=5))),
        RowStep(StepKind.LINEAR, (Columns(4, 0, WIDTH),), numbers(3 * WIDTH, WIDTH, seed=1)),
    ]
    return RowSteps([WIDTH, WIDTH], steps, [0, 3], instruction_set=instruction_set)


def summed(instruction_set: InstructionSet) -> RowSteps:
    steps = [RowStep(StepKind.SUM, (Columns(0, 0, WIDTH), Columns(1, 0, WIDTH)))]
    return RowSteps([WIDTH, WIDTH], steps, [0], instruction_set=instruction_set)


def by_age() -> StepFunction:
    """Ages on both sides of 0: a table with too many cells for registers."""
    weights = numbers(8, seed=9)
    found = step_function(lambda ages: weights[ages.abs().sqrt().long().clamp(0, 7)])
    assert found is not None and len(found.thresholds) > 127
    return found


def by_later_age() -> StepFunction:
    """A table of few cells."""
    weights = numbers(64, seed=9)
    found = step_function(
        lambda ages: weights[(ages.clamp(min=1).log() / 0.301).long().clamp(0, 63)]
    )
    assert found is not None and 64 < len(found.thresholds) <= 127
    return found


COLUMNS = [(0, WIDTH // HEADS), (WIDTH, WIDTH // HEADS), (2 * WIDTH, WIDTH // HEADS)]
attend_all = partial(Attending, heads=HEADS, width=WIDTH // HEADS, value_width=WIDTH // HEADS)


@every_set
@every_length
@pytest.mark.parametrize("weights", list(Weights))
def test_a_layer_has_the_bits_of_its_passes(
    instruction_set: InstructionSet, positions: int, weights: Weights
) -> None:
    rows, after = projected(instruction_set), summed(instruction_set)
    attention = Attention(weights, causal=True, instruction_set=instruction_set)
    constant = numbers(LONGEST, WIDTH, seed=3)
    given, summed_rows, attended, every = (Memory(POSITIONS, WIDTH) for _ in range(4))
    last_row, inside = Memory(1, WIDTH), Memory(POSITIONS, 3 * WIDTH)
    of_positions = Operand(Memory(LONGEST, WIDTH, constant), 0, LAST_ROWS)
    heads = [Operand(inside, first) for first, _ in COLUMNS]
    last_rows = [Operand(memory, row=LAST_ROW) for memory in (summed_rows, every)]
    passes = Passes(
        [given],
        [every, last_row],
        [
            RowStepping(
                rows, [Operand(given), of_positions, Operand(summed_rows), Operand(inside)]
            ),
            attend_all(attention, operands=[*heads, Operand(attended)]),
            RowStepping(after, [Operand(summed_rows), Operand(attended), Operand(every)]),
            RowStepping(after, [*last_rows, Operand(last_row)], rows=1),
        ],
        instruction_set=instruction_set,
    )
    history = numbers(positions, WIDTH, seed=4)
    found = torch.empty(1, positions, WIDTH), torch.empty(1, WIDTH)
    passes(np.array([positions]), [history], found)
    steps, three = rows(history.unsqueeze(0), constant[LONGEST - positions :].unsqueeze(0))
    mixed = attention.of_heads(three, three, three, heads=HEADS, columns=COLUMNS)
    [expected] = after(steps, mixed)
    [last] = after(steps[:, -1], expected[:, -1])
    assert torch.equal(found[0], expected) and torch.equal(found[1], last)


@every_set
@pytest.mark.parametrize("candidates", [1, 2, 25, 100])
def test_candidates_share_a_memory_of_one_row(
    instruction_set: InstructionSet, candidates: int
) -> None:
    step = summed(instruction_set)
    rows, one_row = Memory(POSITIONS, WIDTH), Memory(1, WIDTH)
    mine, out = Memory(CANDIDATES, WIDTH), Memory(CANDIDATES, WIDTH)
    of_user = [Operand(rows, row=LAST_ROW), Operand(rows), Operand(one_row)]
    of_candidates = [Operand(one_row), Operand(mine), Operand(out)]
    passes = Passes(
        [rows, mine],
        [out],
        [RowStepping(step, of_user, rows=1), RowStepping(step, of_candidates, rows=CANDIDATES)],
        instruction_set=instruction_set,
    )
    history, own = numbers(7, WIDTH, seed=4), numbers(candidates, WIDTH, seed=6)
    found = torch.empty(candidates, WIDTH)
    passes(np.array([7]), [history, own], [found], candidates=np.array([candidates]))
    assert torch.equal(found, (history[-1] + history[0]) + own)
    with pytest.raises(InputError, match="expected .* numbers, got"):
        passes(np.array([7]), [history, own], [found], candidates=np.array([candidates + 1]))


@every_set
@every_length
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("has_fixed", [False, True])
@pytest.mark.parametrize("table", [by_age, by_later_age])
def test_biases_by_age_are_the_functions_and_what_is_fixed(
    instruction_set: InstructionSet,
    positions: int,
    turned: bool,
    has_fixed: bool,
    table: Callable[[], StepFunction],
) -> None:
    function, fixed = table(), numbers(LONGEST, LONGEST, seed=2)
    ages = numbers(positions, seed=1) * 30
    ages[positions // 2] = torch.nan
    ages[positions // 3 : positions // 2] = torch.inf
    given, out = Memory(1, POSITIONS), Memory(POSITIONS, POSITIONS)
    more = [Operand(Memory(LONGEST, LONGEST, fixed))] * has_fixed
    passes = Passes(
        [given],
        [out],
        [PairBiasing(function, [Operand(given), Operand(out), *more], turned)],
        instruction_set=instruction_set,
    )
    found = torch.empty(positions, positions)
    passes(np.array([positions]), [ages], [found])
    apart = ages - ages.unsqueeze(1)
    expected = function(-apart if turned else apart)
    if has_fixed:
        expected = fixed[:positions, :positions] + expected
    assert torch.equal(found, expected)


@every_set
@every_length
def test_attention_reads_only_the_biases_that_a_causal_pass_writes(
    instruction_set: InstructionSet, positions: int
) -> None:
    function = by_age()
    attention = Attention(Weights.SILU, causal=True, instruction_set=instruction_set)
    alone = Attention(Weights.SILU, instruction_set=instruction_set)
    rows, by_position = Memory(POSITIONS, 3 * WIDTH), Memory(POSITIONS, 1)
    out, last_row = Memory(POSITIONS, WIDTH), Memory(1, WIDTH)
    biases = Memory(POSITIONS, POSITIONS)
    heads = [Operand(rows, first) for first, _ in COLUMNS]
    query, *others = heads
    passes = Passes(
        [rows, by_position],
        [out, last_row],
        [
            PairBiasing(function, [Operand(by_position), Operand(biases)], causal=True),
            attend_all(attention, operands=[*heads, Operand(out), Operand(biases)]),
            attend_all(
                alone,
                operands=[
                    *(query._replace(row=LAST_ROW), *others),
                    *(Operand(last_row), Operand(biases, 0, LAST_ROW)),
                ],
                queries=1,
            ),
        ],
        instruction_set=instruction_set,
    )
    three, ages = numbers(1, positions, 3 * WIDTH, seed=6), numbers(positions, 1, seed=1) * 30
    found = torch.empty(positions, WIDTH), torch.empty(WIDTH)
    passes(np.array([positions]), [three, ages], found)
    bias = function(ages.flatten() - ages)
    columns = {"heads": HEADS, "columns": COLUMNS}
    expected = attention.of_heads(three, three, three, bias, **columns)  # type: ignore[arg-type]
    last = alone.of_heads(three[:, -1:], three, three, bias[-1:], **columns)  # type: ignore[arg-type]
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], last.flatten())


def test_tensors_that_do_not_fit_are_refused() -> None:
    fastest = max(instruction_sets())
    memories = [Memory(POSITIONS, WIDTH) for _ in range(3)]
    steps = RowStepping(summed(fastest), list(map(Operand, memories)))
    passes = Passes(memories[:2], memories[2:], [steps])
    rows, out = numbers(5, WIDTH), torch.empty(5, WIDTH)
    passes(np.array([5]), [rows, rows], [out])
    for wrong in (rows.double(), numbers(WIDTH, 5).t()):
        with pytest.raises(InputError, match="expected fp32 without gaps, got"):
            passes(np.array([5]), [rows, wrong], [out])
    with pytest.raises(InputError, match=r"expected 120 numbers, got \[4, 24\]"):
        passes(np.array([5]), [rows, rows[:4]], [out])
    with pytest.raises(InputError, match=r"expected 96 numbers, got \[5, 24\]"):
        passes(np.array([4]), [rows, rows], [out])
    with pytest.raises(InputError, match=r"expected 144 numbers, got \[5, 24\]"):
        passes(np.array([4, 2]), [rows, rows], [out])


def test_steps_of_another_instruction_set_are_refused() -> None:
    sets = instruction_sets()
    if len(sets) < 2:
        pytest.skip("this machine has one instruction set")
    memories = [Memory(POSITIONS, WIDTH) for _ in range(3)]
    steps = RowStepping(summed(sets[0]), list(map(Operand, memories)))
    with pytest.raises(InputError, match="row steps prepared for baseline"):
        Passes(memories[:2], memories[2:], [steps], instruction_set=sets[-1])
