from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from sharded_infer.towers.lowering.canonical_forms import select_biases

Positions = Callable[[Tensor], Tensor]


class Biases(nn.Module):
    def __init__(self, positions: Positions, *shape: int) -> None:
        super().__init__()
        self.biases = nn.Parameter(torch.randn(shape))
        self.positions = positions

    def forward(self, given: Tensor) -> Tensor:
        return self.biases[self.positions(given)]


def clamped(given: Tensor) -> Tensor:
    return given.clamp(0, 9)


def from_below(given: Tensor) -> Tensor:
    return given.clamp(min=0)


def negative(given: Tensor) -> Tensor:
    return given.clamp(-3, 9)


def any_number(given: Tensor) -> Tensor:
    return given + 1


def changed(positions: Positions, *shape: int) -> tuple[nn.Module, torch.fx.GraphModule, int]:
    module = Biases(positions, *shape)
    program = torch.export.export(module, (torch.arange(6).view(2, 3),)).module()
    return module, program, select_biases(program)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("positions", [clamped, from_below])
def test_biases_are_selected(positions: Positions) -> None:
    module, program, made = changed(positions, 10)
    assert made == 1
    given = torch.tensor([[0, -5, 9], [3, 3, 1]])
    assert torch.equal(program(given), module(given))


def test_a_position_beyond_the_biases_fails() -> None:
    program = changed(from_below, 10)[1]
    with pytest.raises((IndexError, RuntimeError), match="out of range"):
        program(torch.tensor([[0, 1, 2], [3, 4, 10]]))


@pytest.mark.parametrize("positions", [negative, any_number])
def test_positions_that_may_be_negative_stay(positions: Positions) -> None:
    module, program, made = changed(positions, 10)
    assert made == 0
    given = torch.tensor([[0, -3, 8], [3, 3, 1]])
    assert torch.equal(program(given), module(given))


def test_rows_of_a_table_stay() -> None:
    assert changed(clamped, 10, 4)[2] == 0
