import pytest
import torch

from kernels.abi.row_steps import StepKind
from kernels.errors import InputError
from kernels.machine import InstructionSet
from kernels.sequences.row_step import Columns, RowStep
from kernels.sequences.row_steps import RowSteps
from tests.kernels.drawn import FUSED, every_set, numbers
from tests.reference.row_steps import row_steps_by_torch

ACTIVATIONS = [StepKind.RELU, StepKind.SIGMOID, StepKind.SILU, StepKind.GELU]
close = {"rtol": 1e-5, "atol": 1e-5}


def block(width: int, inner: int) -> tuple[list[int], list[RowStep], list[int]]:
    """Steps between two attentions: inputs of `width` and `3 * width`, and three results."""
    steps = [
        RowStep(StepKind.LINEAR, (Columns(1, width, width),), numbers(width, width)),
        RowStep(StepKind.SUM, (Columns(0, 0, width), Columns(2, 0, width))),
        RowStep(StepKind.NORM, (Columns(3, 0, width),), numbers(width), numbers(width), 1e-5),
        RowStep(StepKind.LINEAR, (Columns(4, 0, width),), numbers(inner, width), numbers(inner)),
        RowStep(StepKind.SILU, (Columns(5, 0, inner),)),
        RowStep(StepKind.LINEAR, (Columns(6, 0, inner),), numbers(width, inner), numbers(width)),
        RowStep(StepKind.DIFFERENCE, (Columns(3, 0, width), Columns(7, 0, width))),
        RowStep(StepKind.PRODUCT, (Columns(8, 0, width), numbers(width, seed=3))),
        RowStep(StepKind.SIGMOID, (Columns(9, 0, width),)),
        RowStep(StepKind.NORM, (Columns(9, 0, width),), epsilon=1e-6),
    ]
    return [width, 3 * width], steps, [1, 8, 9]


@every_set
@pytest.mark.parametrize("rows", [1, 47, 48, 131])
@pytest.mark.parametrize(("width", "inner"), [(64, 256), (16, 48), (5, 130), (33, 7), (1, 1)])
def test_steps_are_those_of_torch(
    instruction_set: InstructionSet, rows: int, width: int, inner: int
) -> None:
    widths, steps, outputs = block(width, inner)
    steps_of = RowSteps(widths, steps, outputs, instruction_set=instruction_set)
    inputs = [numbers(2, rows, one, seed=one) for one in widths]
    for found, expected in zip(
        steps_of(*inputs), row_steps_by_torch(steps_of, *inputs), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@every_set
def test_a_row_has_the_same_bits_among_others(instruction_set: InstructionSet) -> None:
    widths, steps, outputs = block(40, 96)
    steps_of = RowSteps(widths, steps, outputs, instruction_set=instruction_set)
    inputs = [numbers(100, one, seed=one) for one in widths]
    whole = steps_of(*inputs)
    for first, end in ((0, 1), (47, 49), (30, 100)):
        part = steps_of(*(one[first:end] for one in inputs))
        assert all(torch.equal(a, b[first:end]) for a, b in zip(part, whole, strict=True))


def test_instruction_sets_with_fused_products_have_the_same_bits() -> None:
    widths, steps, outputs = block(24, 80)
    inputs = [numbers(50, one, seed=one) for one in widths]
    found = [RowSteps(widths, steps, outputs, instruction_set=one)(*inputs) for one in FUSED]
    for one in found:
        assert all(torch.equal(a, b) for a, b in zip(one, found[0], strict=True))


@every_set
def test_inputs_with_gaps_and_turned_ones_are_read(instruction_set: InstructionSet) -> None:
    steps = [RowStep(StepKind.SUM, (Columns(0, 0, 20), Columns(1, 0, 20)))]
    add = RowSteps([20, 20], steps, [0], instruction_set=instruction_set)
    wide, turned = numbers(3, 9, 50), numbers(3, 20, 9).transpose(1, 2)
    [found] = add(wide[:, :, 10:30], turned)
    assert torch.equal(found, wide[:, :, 10:30] + turned)


@every_set
@pytest.mark.parametrize("kind", [*ACTIVATIONS, StepKind.NORM])
def test_what_is_no_number_stays_so_in_its_row(
    instruction_set: InstructionSet, kind: StepKind
) -> None:
    step = RowStep(kind, (Columns(0, 0, 37),))
    rows = numbers(20, 37)
    rows[7, 36] = torch.nan
    [found] = RowSteps([37], [step], [0], instruction_set=instruction_set)(rows)
    strange = found.isnan()
    assert bool(strange[7, 36]) and not bool(strange[[*range(7), *range(8, 20)]].any())


@every_set
@pytest.mark.parametrize("kind", ACTIVATIONS)
@pytest.mark.parametrize("width", [1, 37, 64])
def test_activations_are_torchs(
    instruction_set: InstructionSet, kind: StepKind, width: int
) -> None:
    near, far = torch.linspace(-9, 9, 64 * 37 * 4), torch.linspace(-80, 80, 64 * 37)
    rows = torch.cat([near, far]).view(-1, width)
    activate = RowSteps(
        [width], [RowStep(kind, (Columns(0, 0, width),))], [0], instruction_set=instruction_set
    )
    expected = row_steps_by_torch(activate, rows.double())[0].float()
    torch.testing.assert_close(activate(rows)[0], expected, rtol=1e-6, atol=5e-7)
    large = torch.tensor([1e38, 1e30, 3e5]).view(3, 1).expand(3, width)
    assert torch.equal(activate(large)[0], row_steps_by_torch(activate, large)[0])


@every_set
def test_a_norm_of_huge_numbers_is_no_number_as_torchs(instruction_set: InstructionSet) -> None:
    step = RowStep(StepKind.NORM, (Columns(0, 0, 24),), epsilon=1e-5)
    norm = RowSteps([24], [step], [0], instruction_set=instruction_set)
    for size in (1e18, 1e30, torch.inf):
        rows = numbers(3, 24) * size
        torch.testing.assert_close(norm(rows), row_steps_by_torch(norm, rows), equal_nan=True)


@every_set
@pytest.mark.parametrize("widths", [(64, 64), (1, 30), (33, 7)])
def test_columns_are_joined(instruction_set: InstructionSet, widths: tuple[int, int]) -> None:
    sources = tuple(Columns(at, 2, width) for at, width in enumerate(widths))
    steps = [
        RowStep(StepKind.JOINED, sources),
        RowStep(StepKind.JOINED, (Columns(2, 0, sum(widths)), numbers(5))),
    ]
    inputs = [numbers(3, 50, 2 + width, seed=width) for width in widths]
    joined = RowSteps([2 + w for w in widths], steps, [1], instruction_set=instruction_set)
    expected = [*(one[..., 2:] for one in inputs), numbers(5).expand(3, 50, 5)]
    assert torch.equal(joined(*inputs)[0], torch.cat(expected, -1))


def test_inputs_of_other_rows_or_dtypes_are_refused() -> None:
    steps = [RowStep(StepKind.SUM, (Columns(0, 0, 8), Columns(1, 0, 8)))]
    add, rows = RowSteps([8, 8], steps, [0]), numbers(4, 6, 8)
    for other in (numbers(1, 1, 8), rows.double()):
        with pytest.raises(InputError, match=r"input 1: expected fp32 \[4, 6, 8\], got"):
            add(rows, other)
