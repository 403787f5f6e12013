import io
import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from sharded_infer.errors import TowerError
from sharded_infer.specs.precision import Precision
from sharded_infer.towers.lowering import int8_packing
from sharded_infer.towers.lowering.int8_packing import has_exact_int8, pack_int8_products
from sharded_infer.towers.lowering.packing import pack_products
from sharded_infer.towers.program.archive import pack_program, read_packed
from sharded_infer.towers.program.int8_linear import INT8_LINEAR
from sharded_infer.towers.tower import export_tower

WIDTH = 96
SIZES = (1, 2, 17, 64)
_PACKED = torch.ops.onednn.qlinear_pointwise.default
needs_exact_int8 = pytest.mark.skipif(
    not has_exact_int8(), reason="oneDNN's int8 products are not exact on this processor"
)


class Layers(nn.Module):
    """A cross, products before a ReLU and before none, one in 3-D, a narrow one, and the last."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Linear(WIDTH, 64, bias=False)
        self.up = nn.Linear(64, WIDTH)
        self.hidden = nn.Linear(WIDTH, 128)
        self.narrow = nn.Linear(128, 32)
        self.wide = nn.Linear(32, 128)
        self.per_field = nn.Linear(64, 64)
        self.last = nn.Linear(128, 1)

    def forward(self, embeddings: Tensor) -> Tensor:
        crossed = torch.addcmul(embeddings, embeddings, self.up(self.down(embeddings)))
        hidden = torch.relu(self.narrow(torch.relu(self.hidden(crossed))))
        fields = torch.tanh(self.per_field(self.wide(hidden).view(-1, 2, 64)))
        scores: Tensor = torch.sigmoid(self.last(fields.flatten(1))).squeeze(1)
        return scores


class Narrow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, embeddings: Tensor) -> Tensor:
        scores: Tensor = self.layers(embeddings).squeeze(1)
        return scores


def inputs(size: int) -> Tensor:
    return torch.randn(size, WIDTH, generator=torch.Generator().manual_seed(size))


def program_of(module: nn.Module, precision: Precision = Precision.INT8) -> GraphModule:
    exported = export_tower(
        module,
        dense={},
        embedding_width=WIDTH,
        outputs=("score",),
        precision=precision,
        calibration=[inputs(512)],
    )
    return read_packed(io.BytesIO(pack_program(exported)), "the test's tower")


def layers() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Layers().eval()


def scores(program: GraphModule, size: int) -> Tensor:
    with torch.inference_mode():
        found: Tensor = program(inputs(size))[0]
    return found


def test_inner_products_that_are_wide_are_lowered() -> None:
    program = program_of(layers())
    lowered = [node for node in program.graph.nodes if node.target is INT8_LINEAR]
    # down, up, hidden and per_field; narrow and wide have 32 on one side, and the last is the last.
    assert len(lowered) == 4
    dtypes = sorted(str(t.dtype) for t in program.buffers() if t.dim() == 2)
    assert dtypes == ["torch.float32"] * 3 + ["torch.int8"] * 4


def test_scores_are_close_to_the_fp32_towers() -> None:
    lowered, plain = program_of(layers()), program_of(layers(), Precision.FP32)
    for size in SIZES:
        torch.testing.assert_close(scores(lowered, size), scores(plain, size), rtol=0, atol=0.01)


def test_where_bytes_overflow_the_integers_are_multiplied_as_fp32(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain, packed = (program_of(layers()) for _ in range(2))
    monkeypatch.setattr(int8_packing, "has_exact_int8", lambda: False)
    assert pack_int8_products(packed) == 4
    assert all(node.target not in (INT8_LINEAR, _PACKED) for node in packed.graph.nodes)
    for size in SIZES:
        torch.testing.assert_close(scores(packed, size), scores(plain, size), rtol=0, atol=2e-4)
    given = inputs(5)
    given[1, 0] = torch.nan
    assert packed(given)[0].isnan().tolist() == [False, True, False, False, False]


class Hidden(nn.Module):
    """Makes NaN of finite inputs, in the last of several products that pass on bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)
        )

    def forward(self, embeddings: Tensor) -> Tensor:
        scores: Tensor = self.layers(torch.log1p(embeddings)).sigmoid().squeeze(1)
        return scores


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16, Precision.INT8])
def test_what_becomes_nan_inside_a_tower_stays_nan(precision: Precision) -> None:
    exported = export_tower(
        Hidden().eval(),
        dense={},
        embedding_width=WIDTH,
        outputs=("score",),
        precision=precision,
        calibration=[inputs(512).abs()],
    )
    program = read_packed(io.BytesIO(pack_program(exported)), "the test's tower")
    pack_int8_products(program)
    pack_products(program)
    given = inputs(3).abs()
    given[1, 5] = -2
    assert program(given)[0].isnan().tolist() == [False, True, False]


def test_a_tower_without_a_wide_product_is_refused() -> None:
    with pytest.raises(TowerError, match="no product to lower"):
        program_of(Narrow())


def test_an_int8_tower_needs_samples() -> None:
    with pytest.raises(TowerError, match="expected samples"):
        export_tower(
            layers(), dense={}, embedding_width=WIDTH, outputs=("s",), precision=Precision.INT8
        )


@pytest.mark.parametrize("change", ["zero point", "dtype", "scales"])
def test_a_file_with_other_constants_is_refused(change: str) -> None:
    program = program_of(layers())
    node = next(n for n in program.graph.nodes if n.target is INT8_LINEAR)
    names = [str(argument.target) for argument in node.args[1:3]]
    if change == "zero point":
        node.args = (*node.args[:5], 256)
    if change == "dtype":
        setattr(program, names[0], getattr(program, names[0]).to(torch.int16))
    if change == "scales":
        setattr(program, names[1], torch.ones(3))
    with pytest.raises(TowerError, match="expected"):
        pack_int8_products(program)


def test_an_int8_product_runs_without_torchs_compiler() -> None:
    """A server that compiles nothing loads neither Triton nor SymPy: checked in another process."""
    script = """
import sys, torch
from sharded_infer.towers.program.int8_linear import INT8_LINEAR
weight = torch.ones(3, 2, dtype=torch.int8)
INT8_LINEAR(torch.ones(4, 2), weight, torch.ones(3), None, torch.ones(2), 0)
print(sorted({"torch._dynamo", "torch._inductor", "sympy", "triton"} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
