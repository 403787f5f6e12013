import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from sharded_infer.errors import TowerError
from sharded_infer.specs.precision import Precision
from sharded_infer.towers.lowering import int8_packing
from sharded_infer.towers.lowering.int8_packing import has_exact_int8, pack_int8_products
from sharded_infer.towers.lowering.packing import pack_products
from sharded_infer.towers.program.int8_linear import INT8_LINEAR
from tests.sharded_infer.towers.lowering.test_products import (
    PRODUCTS,
    SIGNATURE,
    WIDTH,
    Layers,
    inputs,
    score,
)
from tests.sharded_infer.towers.stored import read_back
from tests.support.fresh_process import run_alone

SIZES = (1, 2, 17, 64)
_PACKED = torch.ops.onednn.qlinear_pointwise.default
needs_exact_int8 = pytest.mark.skipif(
    not has_exact_int8(), reason="oneDNN's int8 products are not exact on this processor"
)


def program_of(module: nn.Module, precision: Precision = Precision.INT8) -> GraphModule:
    return read_back(SIGNATURE.export(module, precision, [inputs(512)]))


def layers() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Layers().eval()


def test_inner_products_that_are_wide_are_lowered_and_score_closely() -> None:
    program = program_of(layers())
    lowered = [node for node in program.graph.nodes if node.target is INT8_LINEAR]
    # Narrow and wide have 32 on one side, and the last is the last.
    assert len(lowered) == PRODUCTS - 3
    dtypes = sorted(str(t.dtype) for t in program.buffers() if t.dim() == 2)
    assert dtypes == ["torch.float32"] * 3 + ["torch.int8"] * (PRODUCTS - 3)
    plain = program_of(layers(), Precision.FP32)
    for size in SIZES:
        found, expected = (score(one, inputs(size)) for one in (program, plain))
        torch.testing.assert_close(found, expected, rtol=0, atol=0.01)


def test_where_bytes_overflow_the_integers_are_multiplied_as_fp32(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain, packed = (program_of(layers()) for _ in range(2))
    monkeypatch.setattr(int8_packing, "has_exact_int8", lambda: False)
    assert pack_int8_products(packed) == PRODUCTS - 3
    assert all(node.target not in (INT8_LINEAR, _PACKED) for node in packed.graph.nodes)
    for size in SIZES:
        found, expected = (score(one, inputs(size)) for one in (packed, plain))
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-4)
    given = inputs(5)
    given[1, 0] = torch.nan
    assert packed(given)[0].isnan().tolist() == [False, True, False, False, False]


class Hidden(nn.Module):
    """Makes NaN of finite inputs, before several products that pass on bytes if they are wide."""

    def __init__(self, width: int) -> None:
        super().__init__()
        first, second = nn.Linear(WIDTH, width), nn.Linear(width, width)
        self.layers = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Linear(width, 1))

    def forward(self, embeddings: Tensor) -> Tensor:
        scores: Tensor = self.layers(torch.log1p(embeddings)).sigmoid().squeeze(1)
        return scores


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16, Precision.INT8])
def test_what_becomes_nan_inside_a_tower_stays_nan(precision: Precision) -> None:
    program = read_back(SIGNATURE.export(Hidden(64).eval(), precision, [inputs(512).abs()]))
    pack_int8_products(program)
    pack_products(program)
    given = inputs(3).abs()
    given[1, 5] = -2
    assert program(given)[0].isnan().tolist() == [False, True, False]


def test_a_tower_without_a_wide_product_is_refused() -> None:
    with pytest.raises(TowerError, match="no product to lower"):
        SIGNATURE.export(Hidden(16), Precision.INT8, [inputs(512).abs()])


def test_an_int8_tower_needs_samples() -> None:
    with pytest.raises(TowerError, match="expected samples"):
        SIGNATURE.export(layers(), Precision.INT8)


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
    found = run_alone("""
import json, sys, torch
from sharded_infer.towers.program.int8_linear import INT8_LINEAR
weight = torch.ones(3, 2, dtype=torch.int8)
INT8_LINEAR(torch.ones(4, 2), weight, torch.ones(3), None, torch.ones(2), 0)
compiler = {"torch._dynamo", "torch._inductor", "sympy", "triton"}
print(json.dumps(sorted(compiler & set(sys.modules))))
""")
    assert found == []
