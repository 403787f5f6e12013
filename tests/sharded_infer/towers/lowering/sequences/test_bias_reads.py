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


@pytest.mark.parametrize(
    ("positions", "shape", "made"),
    [
        (lambda given: given.clamp(0, 9), (10,), 1),
        (lambda given: given.clamp(min=0), (10,), 1),
        # Negative positions count from the end, and rows of a table are no biases.
        (lambda given: given.clamp(-3, 9), (10,), 0),
        (lambda given: given + 1, (10,), 0),
        (lambda given: given.clamp(0, 9), (10, 4), 0),
    ],
)
def test_biases_at_positions_that_are_not_negative_are_selected(
    positions: Positions, shape: tuple[int, ...], made: int
) -> None:
    module = Biases(positions, *shape)
    program = torch.export.export(module, (torch.arange(6).view(2, 3),)).module()
    assert select_biases(program) == made  # type: ignore[arg-type]
    given = torch.tensor([[0, -5, 8], [3, 3, 1]])
    assert torch.equal(program(given), module(given))
