"""Products of a loaded tower, compiled or oneDNN's, beside the stored program by torch."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule

from kernels.machine import MAX_INSTRUCTION_SET
from kernels.product import product_dtypes
from sharded_infer.specs.precision import Precision
from sharded_infer.towers.lowering.compiled_products import CompiledProduct, CrossedProduct
from sharded_infer.towers.lowering.fused_steps import Step
from sharded_infer.towers.lowering.packing import pack_products, packable_dtypes
from sharded_infer.towers.program.archive import read_program, write_program
from sharded_infer.towers.tower import Tower
from tests.sharded_infer.towers.stored import Signature

WIDTH = 96
SIGNATURE = Signature(WIDTH)
DTYPES = {
    Precision.FP32: torch.float32,
    Precision.BF16: torch.bfloat16,
    Precision.FP16: torch.float16,
    Precision.INT8: torch.int8,
}
# Sums in another order; in a low precision a factor may round to its neighbour.
BOUNDS = {Precision.FP32: 1e-5, Precision.BF16: 3e-3, Precision.FP16: 1e-3, Precision.INT8: 3e-3}
WAYS = ("compiled", "oneDNN")
on_every_way = pytest.mark.parametrize("way", WAYS)
in_every_precision = pytest.mark.parametrize("precision", DTYPES)

Load = Callable[[Precision, str], Tower]


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Linear(WIDTH, 64, bias=False) for _ in range(2))
        self.up = nn.ModuleList(nn.Linear(64, WIDTH) for _ in range(2))
        self.hidden, self.narrow = nn.Linear(WIDTH, 128), nn.Linear(128, 32)
        self.wide, self.per_field = nn.Linear(32, 128), nn.Linear(64, 70)
        self.last = nn.Linear(140, 1)

    def forward(self, embeddings: Tensor) -> Tensor:
        crossed = torch.addcmul(embeddings, embeddings, self.up[0](self.down[0](embeddings)))
        crossed = embeddings * self.up[1](self.down[1](crossed)) + crossed
        hidden = torch.relu(self.narrow(torch.relu(self.hidden(crossed))))
        twice = self.per_field(torch.relu(self.wide(hidden)).view(-1, 2, 64))
        scores: Tensor = torch.sigmoid(self.last((twice * twice.tanh()).flatten(1))).squeeze(1)
        return scores


PRODUCTS = 9


class Broadcasting(nn.Module):
    """Looks like a cross, and multiplies by a column or by 2."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.last = nn.Linear(WIDTH, 1), nn.Linear(WIDTH, 1)

    def forward(self, embeddings: Tensor) -> Tensor:
        x = embeddings + embeddings * self.gate(embeddings)
        scores: Tensor = self.last(torch.addcmul(x, x, x, value=2)).squeeze(1)
        return scores


def inputs(size: int) -> Tensor:
    return torch.randn(size, WIDTH, generator=torch.Generator().manual_seed(size))


def written(kind: type[nn.Module], precision: Precision, path: Path) -> Path:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        module = kind().eval()
    write_program(SIGNATURE.export(module, precision, [inputs(512)]), path)
    return path


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> dict[Precision, Path]:
    folder = tmp_path_factory.mktemp("towers")
    return {one: written(Layers, one, folder / f"{one}.pt2") for one in DTYPES}


@pytest.fixture
def load(stored: dict[Precision, Path], monkeypatch: pytest.MonkeyPatch) -> Load:
    """Loads a tower whose products run one way, if this machine has it."""

    def load_one(precision: Precision, way: str) -> Tower:
        if way == "oneDNN":
            monkeypatch.setenv(MAX_INSTRUCTION_SET, "baseline")
            assert not product_dtypes()
        elif DTYPES[precision] not in product_dtypes():
            pytest.skip(f"products of {precision} are not compiled for this machine")
        return SIGNATURE.load(stored[precision])

    return load_one


def modules(tower: Tower, kind: type[nn.Module]) -> int:
    program = tower.program
    called = [n for n in program.graph.nodes if n.op == "call_module"]
    return sum(isinstance(program.get_submodule(str(n.target)), kind) for n in called)


def score(program: GraphModule, given: Tensor) -> Tensor:
    with torch.inference_mode():
        found: Tensor = program(given)[0]
    return found


@on_every_way
@in_every_precision
def test_scores_are_those_of_the_stored_program(
    stored: dict[Precision, Path], load: Load, precision: Precision, way: str
) -> None:
    tower, plain = load(precision, way), read_program(stored[precision])
    for size in (1, 2, 17, 64):
        found, expected = tower((), inputs(size))[0], score(plain, inputs(size))
        torch.testing.assert_close(found, expected, rtol=0, atol=BOUNDS[precision])


@on_every_way
@in_every_precision
@pytest.mark.parametrize("strange", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_stays_in_its_row(
    load: Load, precision: Precision, way: str, strange: float
) -> None:
    tower, given = load(precision, way), inputs(5)
    clean = tower((), given)[0]
    given[1, 0] = given[3, -1] = strange
    found = tower((), given)[0]
    assert torch.equal(found[::2], clean[::2])
    assert found.isnan().tolist() == [False, True, False, True, False]


@on_every_way
@in_every_precision
def test_weights_are_held_once(
    stored: dict[Precision, Path], load: Load, precision: Precision, way: str
) -> None:
    if way == "oneDNN" and DTYPES[precision] not in {torch.int8, *packable_dtypes()}:
        pytest.skip(f"oneDNN packs no weights in {precision} here")
    weights = {tuple(one.shape) for one in Layers().parameters() if one.dim() == 2}
    plain, tower = read_program(stored[precision]), load(precision, way)
    held, left = (
        [one for one in (*of.parameters(), *of.buffers()) if one.layout is torch.strided]
        for of in (plain, tower.program)
    )
    assert weights <= {tuple(one.shape) for one in held}
    assert not weights & {tuple(one.shape) for one in left}


@in_every_precision
def test_every_product_is_compiled_and_crosses_are_joined(load: Load, precision: Precision) -> None:
    tower = load(precision, "compiled")
    assert modules(tower, CrossedProduct) == 2
    assert modules(tower, CompiledProduct) == PRODUCTS - 2
    left = {str(node.target) for node in tower.program.graph.nodes if node.op == "call_function"}
    assert not any("linear" in name or "addcmul" in name or "relu" in name for name in left)


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16])
def test_crosses_of_onednns_products_are_one_step_each(load: Load, precision: Precision) -> None:
    tower = load(precision, "oneDNN")
    assert modules(tower, Step) == 2
    assert modules(tower, CompiledProduct) == modules(tower, CrossedProduct) == 0


def test_what_is_broadcast_or_scaled_is_no_cross(tmp_path: Path) -> None:
    path = written(Broadcasting, Precision.FP32, tmp_path / "tower.pt2")
    tower = SIGNATURE.load(path)
    assert modules(tower, Step) == modules(tower, CrossedProduct) == 0
    expected = score(read_program(path), inputs(5))
    torch.testing.assert_close(tower((), inputs(5))[0], expected, rtol=1e-5, atol=1e-5)


def test_without_onednn_nothing_changes(
    stored: dict[Precision, Path], load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    found = load(Precision.FP32, "oneDNN")((), inputs(7))[0]
    expected = score(read_program(stored[Precision.FP32]), inputs(7))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shape", [(1,), ()])
def test_a_bias_that_torch_broadcasts_is_added_to_every_column(shape: tuple[int, ...]) -> None:
    graph = Graph()
    x, weight, bias = graph.placeholder("x"), graph.get_attr("weight"), graph.get_attr("bias")
    graph.output(graph.call_function(torch.ops.aten.linear.default, (x, weight, bias)))
    held = nn.Module()
    held.register_buffer("weight", torch.eye(32).repeat(3, 1))
    held.register_buffer("bias", torch.full(shape, 0.5))
    program = GraphModule(held, graph)
    pack_products(program, product_dtypes())
    rows = torch.randn(5, 32)
    torch.testing.assert_close(program(rows), rows.repeat(1, 3) + 0.5)


@on_every_way
def test_products_that_are_packed_later_leave_those_before_their_weights(way: str) -> None:
    compiled = product_dtypes() if way == "compiled" else frozenset()
    if torch.float32 not in (compiled if way == "compiled" else packable_dtypes()):
        pytest.skip(f"no products of {way} here")
    generator = torch.Generator().manual_seed(3)
    shapes = (5, 24), (32, 24), (16, 32), (8, 16)
    x, *weights = (torch.randn(shape, generator=generator) for shape in shapes)
    program, expected = GraphModule(nn.Module(), Graph()), x
    output = program.graph.output((program.graph.placeholder("x"),))
    for number, weight in enumerate(weights):
        program.register_buffer(f"weight{number}", weight)
        with program.graph.inserting_before(output):
            factors = (*output.args[0], program.graph.get_attr(f"weight{number}"))
            product = program.graph.call_function(torch.ops.aten.linear.default, factors)
        output.args = ((product,),)
        assert pack_products(program, compiled) == 1
        expected = expected @ weight.T
        torch.testing.assert_close(program(x)[0], expected, rtol=1e-5, atol=1e-5)
