from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernels.sequences.pair_biases import StepFunction, step_function

WEIGHTS = torch.randn(64, generator=torch.Generator().manual_seed(0))
SPECIAL = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-45, 3.4e38, -3.4e38, 1.0])


def table_of(function: Callable[[Tensor], Tensor]) -> StepFunction:
    found = step_function(function)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "function",
    [
        lambda numbers: WEIGHTS[(numbers.clamp(min=1.0).log() / 0.301).long().clamp(0, 63)],
        lambda numbers: WEIGHTS[(numbers / 86_400).floor().long().clamp(0, 63)],
        lambda numbers: WEIGHTS[numbers.abs().sqrt().long().clamp(0, 63)],
        lambda numbers: 1 / numbers.sign(),
        lambda numbers: torch.full_like(numbers, 7.0),
    ],
    ids=["logarithm", "days", "distance", "sign", "constant"],
)
def test_a_table_has_the_values_of_its_function(function: Callable[[Tensor], Tensor]) -> None:
    table = table_of(function)
    sizes = torch.randn(100_000, generator=torch.Generator().manual_seed(1)).mul(6).exp()
    numbers = torch.cat([sizes, -sizes, SPECIAL])
    assert torch.equal(table(numbers), function(numbers))


def test_between_two_thresholds_of_numbers_side_by_side() -> None:
    low = torch.tensor(1.0)
    high = torch.nextafter(low, torch.tensor(2.0))
    above = torch.nextafter(high, torch.tensor(2.0))

    def narrow(numbers: Tensor) -> Tensor:
        return (numbers >= high).float() + (numbers >= above).float() * 2

    table = table_of(narrow)
    numbers = torch.stack([low, high, above, -high, torch.tensor(torch.nan)])
    assert table(numbers).tolist() == [0.0, 1.0, 3.0, 0.0, 0.0]


@pytest.mark.parametrize(
    "function",
    [
        lambda numbers: numbers,
        lambda numbers: numbers.floor(),
        # It turns between two powers of two, where nobody looks for a threshold.
        lambda numbers: ((numbers > 1.2) & (numbers < 1.3)).float(),
    ],
)
def test_other_functions_have_none(function: Callable[[Tensor], Tensor]) -> None:
    assert step_function(function) is None
