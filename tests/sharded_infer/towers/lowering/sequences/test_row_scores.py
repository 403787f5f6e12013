from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from sharded_infer.towers.lowering.canonical_forms import keep_columns
from sharded_infer.towers.lowering.packing import pack_products
from sharded_infer.towers.lowering.sequences.row_steps import RowPass, fuse_row_steps
from sharded_infer.towers.lowering.tensor_kinds import kinds_of

DIM = 12


class Scores(nn.Module):
    def __init__(self, score: Callable[["Scores", Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.top = nn.Linear(DIM, 1)
        self.score = score

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        return self.score(self, one, other)


def given(samples: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(samples)
    return torch.randn(samples, DIM, generator=generator), torch.randn(
        samples, DIM, generator=generator
    )


def lowered(score: Callable[[Scores, Tensor, Tensor], Tensor]) -> tuple[GraphModule, int]:
    """The program, checked against the module at several sizes, and the number of kept columns."""
    module = Scores(score).requires_grad_(False)
    shapes = {"one": {0: torch.export.Dim("B")}, "other": {0: torch.export.Dim("B")}}
    exported = torch.export.export(module, given(3), dynamic_shapes=shapes)
    program: GraphModule = exported.module()  # type: ignore[assignment]
    pack_products(program)
    made = keep_columns(program, kinds_of(program, given(3)))
    fuse_row_steps(program, (given(3), given(5)))
    with torch.inference_mode():
        for samples in (1, 2, 50):
            expected = module(*given(samples))
            torch.testing.assert_close(program(*given(samples)), expected, rtol=1e-5, atol=1e-6)
    return program, made


@pytest.mark.parametrize(
    ("score", "kept"),
    [
        (lambda _, one, other: (one * other).sum(1).sigmoid(), 2),
        (lambda _, one, other: (one * other).sum(-1), 1),
        (lambda module, one, other: module.top(one + other).squeeze(1).sigmoid(), 1),
        (lambda module, one, other: module.top(one - other).squeeze(-1).relu().sigmoid(), 2),
    ],
)
def test_a_pass_ends_a_score(score: Callable[[Scores, Tensor, Tensor], Tensor], kept: int) -> None:
    program, made = lowered(score)
    assert made == kept
    operators = [node for node in program.graph.nodes if node.op == "call_function"]
    # What takes the pass's result apart, and drops its column.
    assert len(operators) == 2
    assert sum(isinstance(one, RowPass) for one in program.modules()) == 1


@pytest.mark.parametrize(
    "score",
    [
        lambda _, one, other: (one * other).sum(0),
        lambda _, one, other: (one * other).sum(),
        lambda _, one, other: one.sum(1, dtype=torch.float64).float() + other.mean(1),
        lambda _, one, other: (one * other).sum((0, 1)).sigmoid(),
    ],
)
def test_what_sums_otherwise_stays(score: Callable[[Scores, Tensor, Tensor], Tensor]) -> None:
    assert lowered(score)[1] == 0
