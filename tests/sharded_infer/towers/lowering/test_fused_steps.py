import io

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from sharded_infer.specs.precision import Precision
from sharded_infer.towers.lowering.fused_steps import Step, fuse_steps
from sharded_infer.towers.program.archive import pack_program, read_packed
from sharded_infer.towers.tower import export_tower

WIDTH = 32


class Crosses(nn.Module):
    """Two crosses, written in two ways; only a product reads the second's result."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.top = nn.Linear(WIDTH, 8)
        self.last = nn.Linear(8, 1)

    def forward(self, embeddings: Tensor) -> Tensor:
        x = torch.addcmul(embeddings, embeddings, self.first(embeddings))
        x = embeddings * self.second(x) + x
        scores: Tensor = self.last(torch.relu(self.top(x))).squeeze(1)
        return scores


class Broadcasting(nn.Module):
    """Looks like a cross, and multiplies by a column."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 1)
        self.last = nn.Linear(WIDTH, 1)

    def forward(self, embeddings: Tensor) -> Tensor:
        x = embeddings + embeddings * self.gate(embeddings)
        scores: Tensor = self.last(torch.addcmul(x, x, x, value=2)).squeeze(1)
        return scores


def program_of(module: nn.Module, precision: Precision) -> GraphModule:
    exported = export_tower(
        module, dense={}, embedding_width=WIDTH, outputs=("score",), precision=precision
    )
    return read_packed(io.BytesIO(pack_program(exported)), "the test's tower")


def made(kind: type[nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        return kind().eval()


def inputs(size: int) -> Tensor:
    return torch.randn(size, WIDTH, generator=torch.Generator().manual_seed(size))


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16])
def test_fused_crosses_score_alike(precision: Precision) -> None:
    plain, fused = (program_of(made(Crosses), precision) for _ in range(2))
    assert fuse_steps(fused, [inputs(2)]) == 2
    for size in (1, 3, 40):
        with torch.inference_mode():
            expected, got = plain(inputs(size))[0], fused(inputs(size))[0]
        torch.testing.assert_close(
            got, expected, rtol=1e-2, atol=1e-2 if precision == "bf16" else 1e-5
        )


def test_casts_around_a_cross_are_taken_along() -> None:
    program = program_of(made(Crosses), Precision.BF16)
    casts = [n for n in program.graph.nodes if n.target is torch.ops.aten.to.dtype]
    fuse_steps(program, [inputs(2)])
    left = [n for n in program.graph.nodes if n.target is torch.ops.aten.to.dtype]
    # Before: of the input, of each cross's factor and result, and of what the last product gets.
    assert len(left) < len(casts) and len(left) <= 3
    steps = [m for m in program.modules() if isinstance(m, Step)]
    assert [step.low for step in steps] == [torch.bfloat16] * 2


def test_what_is_broadcast_or_scaled_is_left_alone() -> None:
    plain, program = (program_of(made(Broadcasting), Precision.FP32) for _ in range(2))
    assert fuse_steps(program, [inputs(2)]) == 0
    assert torch.equal(program(inputs(5))[0], plain(inputs(5))[0])
