from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from kernels.machine import MAX_INSTRUCTION_SET
from kernels.product import product_dtypes
from sharded_infer.specs.precision import Precision
from sharded_infer.towers import tower as tower_module
from sharded_infer.towers.lowering.compiled_products import (
    CompiledProduct,
    CrossedProduct,
)
from sharded_infer.towers.program.archive import write_program
from sharded_infer.towers.tower import Tower, export_tower

WIDTH = 96
LOW = [
    pytest.param(
        precision,
        marks=pytest.mark.skipif(dtype not in product_dtypes(), reason="not compiled here"),
    )
    for precision, dtype in ((Precision.BF16, torch.bfloat16), (Precision.INT8, torch.int8))
]


class Crosses(nn.Module):
    """Two crosses, a product in 3-D, one behind a ReLU, one used twice, and the last."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Linear(WIDTH, 64, bias=False) for _ in range(2))
        self.up = nn.ModuleList(nn.Linear(64, WIDTH) for _ in range(2))
        self.hidden = nn.Linear(WIDTH, 128)
        self.per_field = nn.Linear(64, 70)
        self.last = nn.Linear(140, 1)

    def forward(self, embeddings: Tensor) -> Tensor:
        crossed = embeddings
        for down, up in zip(self.down, self.up, strict=True):
            crossed = torch.addcmul(crossed, embeddings, up(down(crossed)))
        hidden = torch.relu(self.hidden(crossed)).view(-1, 2, 64)
        twice = self.per_field(hidden)
        scores: Tensor = torch.sigmoid(self.last((twice * twice.tanh()).flatten(1))).squeeze(1)
        return scores


def inputs(size: int) -> Tensor:
    return torch.randn(size, WIDTH, generator=torch.Generator().manual_seed(size))


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> dict[Precision, Path]:
    paths = {}
    for precision in (Precision.FP32, Precision.BF16, Precision.INT8):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            module = Crosses().eval()
        program = export_tower(
            module,
            dense={},
            embedding_width=WIDTH,
            outputs=("s",),
            precision=precision,
            calibration=[inputs(512)],
        )
        paths[precision] = tmp_path_factory.mktemp("towers") / "tower.pt2"
        write_program(program, paths[precision])
    return paths


def load(path: Path) -> Tower:
    return Tower.load(path, dense={}, embedding_width=WIDTH, outputs=("s",))


def without(monkeypatch: pytest.MonkeyPatch, path: Path) -> Tower:
    with monkeypatch.context() as patched:
        patched.setattr(tower_module, "product_dtypes", frozenset)
        return load(path)


def modules(program: GraphModule, kind: type[nn.Module]) -> int:
    called = [n for n in program.graph.nodes if n.op == "call_module"]
    return sum(isinstance(program.get_submodule(str(n.target)), kind) for n in called)


@pytest.mark.parametrize("precision", LOW)
def test_scores_are_those_of_onednns_products(
    stored: dict[Precision, Path], precision: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = load(stored[precision]), without(monkeypatch, stored[precision])
    exact = without(monkeypatch, stored[Precision.FP32])
    for size in (1, 2, 17, 64):
        (found,), (wanted,), (fp32,) = (one((), inputs(size)) for one in (ours, theirs, exact))
        torch.testing.assert_close(found, wanted, rtol=0, atol=3e-3)
        # Not further from fp32 than oneDNN's, but for one number's luck.
        assert float((found - fp32).abs().mean()) < 1.5 * float((wanted - fp32).abs().mean()) + 1e-4


@pytest.mark.parametrize("precision", LOW)
def test_every_product_is_compiled_and_crosses_are_joined(
    stored: dict[Precision, Path], precision: Precision
) -> None:
    tower = load(stored[precision])
    program = tower.program
    assert modules(program, CrossedProduct) == 2
    # Two downs, the hidden one with its ReLU, the one per field and the last.
    assert modules(program, CompiledProduct) == 5
    left = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert not any("linear" in name or "addcmul" in name or "relu" in name for name in left)


@pytest.mark.parametrize("precision", LOW)
def test_a_row_has_the_same_bits_in_every_batch(
    stored: dict[Precision, Path], precision: Precision
) -> None:
    tower, batch = load(stored[precision]), inputs(23)
    (whole,) = tower((), batch)
    for row in range(23):
        assert torch.equal(tower((), batch[row : row + 1])[0][0], whole[row])


@pytest.mark.parametrize("precision", LOW)
@pytest.mark.parametrize("strange", [torch.nan, torch.inf])
def test_a_row_that_is_not_finite_scores_nan_and_no_other(
    stored: dict[Precision, Path], precision: Precision, strange: float
) -> None:
    tower, batch = load(stored[precision]), inputs(8)
    (clean,) = tower((), batch)
    batch[5, 11] = strange
    (found,) = tower((), batch)
    assert found.isnan().tolist() == [row == 5 for row in range(8)]
    assert torch.equal(found[:5], clean[:5]) and torch.equal(found[6:], clean[6:])


@pytest.mark.skipif(not product_dtypes(), reason="not compiled here")
def test_a_tower_in_fp32_scores_as_by_onednns_products(
    stored: dict[Precision, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    tower = load(stored[Precision.FP32])
    assert modules(tower.program, CompiledProduct) and modules(tower.program, CrossedProduct)
    wanted = without(monkeypatch, stored[Precision.FP32])
    assert modules(wanted.program, CompiledProduct) == 0
    torch.testing.assert_close(
        tower((), inputs(9))[0], wanted((), inputs(9))[0], rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("precision", LOW)
def test_weights_are_held_once(stored: dict[Precision, Path], precision: Precision) -> None:
    tower = load(stored[precision])
    program = tower.program
    held = [*program.parameters(), *program.buffers()]
    # Packed weights are padded; beside them there are only biases and scales.
    weights = 4 * WIDTH * 64 + 128 * WIDTH + 80 * 64 + 16 * 140
    assert weights <= sum(t.numel() for t in held) < 1.1 * weights
    low = torch.bfloat16 if precision is Precision.BF16 else torch.int8
    assert {t.dtype for t in held if t.numel() > 5000} == {low}


def test_nothing_is_compiled_where_the_machine_has_no_such_product(
    stored: dict[Precision, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MAX_INSTRUCTION_SET, "baseline")
    for precision in (Precision.BF16, Precision.INT8):
        tower = load(stored[precision])
        assert modules(tower.program, CompiledProduct) == 0
