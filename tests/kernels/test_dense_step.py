"""The pass between two products: torch's bits, on every instruction set of this machine."""

import pytest
import torch
from torch import Tensor

from kernels.dense_step import ByteLevels, DenseStep, poison_of, to_bytes
from kernels.machine import InstructionSet, instruction_sets

WIDTHS = (1, 15, 16, 17, 48, 130)
every_set = pytest.mark.parametrize("instruction_set", instruction_sets())


def numbers(rows: int, width: int, seed: int) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) * 3


def levels_of(width: int) -> ByteLevels:
    return ByteLevels(numbers(1, width, 9)[0].abs() * 10 + 1, 117)


@every_set
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_bytes_are_those_of_torch(instruction_set: InstructionSet, rows: int, width: int) -> None:
    values, levels = numbers(rows, width, 1), levels_of(width)
    kept, low, _ = DenseStep(keep=False, low=levels, instruction_set=instruction_set)(values)
    assert kept is None and low is not None
    assert torch.equal(low, to_bytes(values, levels))


@every_set
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("factor_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("low", ["nothing", "bf16", "bytes"])
def test_a_cross_is_that_of_torch(
    instruction_set: InstructionSet, width: int, factor_dtype: torch.dtype, low: str
) -> None:
    values, first = numbers(7, width, 2), numbers(7, width, 3)
    factor = numbers(7, width, 4).to(factor_dtype)
    levels = levels_of(width)
    wanted = {"nothing": None, "bf16": torch.bfloat16, "bytes": levels}[low]
    step = DenseStep(keep=True, low=wanted, instruction_set=instruction_set)
    kept, made, _ = step(values, first, factor)
    expected = torch.addcmul(values, first, factor.float())
    assert kept is not None
    if instruction_set is InstructionSet.BASELINE:  # it has no fused product and sum
        torch.testing.assert_close(kept, expected, rtol=1e-5, atol=1e-5)
        expected = kept
    assert torch.equal(kept, expected)
    if low == "nothing":
        assert made is None
    if low == "bf16":
        assert made is not None and torch.equal(made, expected.to(torch.bfloat16))
    if low == "bytes":
        assert made is not None and torch.equal(made, to_bytes(expected, levels))


@every_set
def test_numbers_beyond_the_levels_and_what_is_no_number_stay_bytes(
    instruction_set: InstructionSet,
) -> None:
    values = torch.tensor([[1e30, -1e30, float("inf"), -float("inf"), float("nan"), 0.5]])
    levels = ByteLevels(torch.ones(6), 100)
    low = DenseStep(keep=False, low=levels, instruction_set=instruction_set)(values).low
    assert low is not None
    # Half to even: 100.5 is 100.
    assert low.tolist() == [[255, 0, 255, 0, 255, 100]]
    assert torch.equal(low, to_bytes(values, levels))


@every_set
def test_a_nan_of_any_bits_is_one_in_bf16(instruction_set: InstructionSet) -> None:
    bits = torch.tensor([[0x7FFFFFFF, -1, 0x7F800001, 0x7FC00000, 0x7F7FFFFF, 0x7F800000]])
    values = bits.to(torch.int32).view(torch.float32)
    step = DenseStep(keep=False, low=torch.bfloat16, instruction_set=instruction_set)
    low = step(values).low
    assert low is not None and low.isnan().tolist() == [[True] * 4 + [False] * 2]


@every_set
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("strange", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("crosses", [False, True])
def test_a_row_that_is_not_finite_is_poisoned_and_no_other(
    instruction_set: InstructionSet, width: int, strange: float, crosses: bool
) -> None:
    values, factors = numbers(4, width, 1), [numbers(4, width, n) for n in (2, 3)]
    values[0, 0] = values[2, -1] = strange
    step = DenseStep(keep=False, low=levels_of(width), instruction_set=instruction_set)
    poison = step(values, *factors).poison if crosses else step(values).poison
    assert poison is not None
    assert poison.isnan()[:, 0].tolist() == [True, False, True, False]
    assert poison[1::2].tolist() == [[0], [0]]
    assert torch.equal(poison.isnan(), poison_of(values).isnan())


def test_what_the_compiled_pass_cannot_read_is_left_to_torch() -> None:
    values, column = numbers(4, 6, 5), numbers(4, 1, 6)
    step = DenseStep(keep=True, low=torch.bfloat16)
    broadcast = torch.addcmul(values, column, values)
    kept, low, _ = step(values, column, values)
    assert kept is not None and low is not None
    assert torch.equal(kept, broadcast) and torch.equal(low, broadcast.to(torch.bfloat16))
    turned = numbers(6, 4, 7).t()
    kept = step(turned, turned, turned).x
    assert kept is not None and torch.equal(kept, torch.addcmul(turned, turned, turned))
