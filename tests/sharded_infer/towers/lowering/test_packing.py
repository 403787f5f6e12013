import io

import pytest
import torch
from torch import nn
from torch.fx import Graph, GraphModule

from kernels.product import product_dtypes
from sharded_infer.specs.precision import Precision
from sharded_infer.towers.lowering import packing as tower_packing
from sharded_infer.towers.lowering.packing import pack_products
from sharded_infer.towers.program.archive import pack_program, read_packed
from sharded_infer.towers.tower import export_tower

SIZES = (1, 2, 3, 17, 64, 257)
WIDTH = 24
_PACKED = torch.ops.mkldnn._linear_pointwise.default
needs_onednn = pytest.mark.skipif(
    not tower_packing.packable_dtypes(), reason="this build of torch has no oneDNN"
)
needs_bf16 = pytest.mark.skipif(
    torch.bfloat16 not in tower_packing.packable_dtypes(),
    reason="oneDNN has no bf16 on this processor",
)


class Layers(nn.Module):
    """Products before a ReLU, before another function, read twice, without bias, and in 3-D."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 32)
        self.twice = nn.Linear(32, 32, bias=False)
        self.per_field = nn.Linear(8, 8)
        self.last = nn.Linear(32, 1)

    def forward(self, embeddings: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.first(embeddings))
        crossed = self.twice(hidden)
        hidden = torch.relu(crossed) + crossed
        fields = torch.tanh(self.per_field(hidden.view(-1, 4, 8)))
        scores: torch.Tensor = torch.sigmoid(self.last(fields.flatten(1))).squeeze(1)
        return scores


class OwnWeight(nn.Module):
    """A product of two values that both come from the request."""

    def forward(self, embeddings: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = nn.functional.linear(embeddings, embeddings[:1]).squeeze(1)
        return made


def program_of(module: nn.Module, precision: Precision) -> GraphModule:
    exported = export_tower(
        module, dense={}, embedding_width=WIDTH, outputs=("score",), precision=precision
    )
    return read_packed(io.BytesIO(pack_program(exported)), "the test's tower")


def layers() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Layers().eval()


def scores(program: GraphModule, size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(size)
    with torch.inference_mode():
        found: torch.Tensor = program(torch.randn(size, WIDTH, generator=generator))[0]
    return found


def packed_nodes(program: GraphModule) -> list[str]:
    return [node.args[3] for node in program.graph.nodes if node.target is _PACKED]


@needs_bf16
def test_bf16_products_score_alike() -> None:
    plain, packed = (program_of(layers(), Precision.BF16) for _ in range(2))
    # The last product is in fp32, as always.
    assert pack_products(packed) == 4
    for size in SIZES:
        torch.testing.assert_close(scores(packed, size), scores(plain, size), rtol=1e-6, atol=1e-6)


@needs_onednn
def test_fp32_products_differ_by_rounding_only() -> None:
    plain, packed = (program_of(layers(), Precision.FP32) for _ in range(2))
    assert pack_products(packed) == 4
    for size in SIZES:
        torch.testing.assert_close(scores(packed, size), scores(plain, size), rtol=1e-5, atol=1e-6)


@needs_onednn
@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16])
@pytest.mark.parametrize("strange", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_goes_through_as_in_torch(precision: Precision, strange: float) -> None:
    plain, packed = (program_of(layers(), precision) for _ in range(2))
    pack_products(packed)
    embeddings = torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(1))
    embeddings[1, 0] = embeddings[3, -1] = strange
    with torch.inference_mode():
        expected, found = plain(embeddings)[0], packed(embeddings)[0]
    assert found.isnan().tolist() == expected.isnan().tolist()
    if strange != strange:
        assert found.isnan().tolist() == [False, True, False, True, False]


@needs_onednn
@pytest.mark.parametrize(
    "precision", [Precision.FP32, pytest.param(Precision.BF16, marks=needs_bf16)]
)
def test_the_stored_weights_are_freed(precision: Precision) -> None:
    program = program_of(layers(), precision)
    before = dict(program.named_parameters()) | dict(program.named_buffers())
    assert any(tensor.dim() == 2 for tensor in before.values())
    pack_products(program)
    left = [*program.parameters(), *program.buffers()]
    assert [t for t in left if t.layout is torch.strided and t.dim() == 2] == []
    assert scores(program, 5).shape == (5,)


@needs_onednn
def test_a_product_with_a_weight_of_the_request_is_left_alone() -> None:
    plain, program = (program_of(OwnWeight(), Precision.FP32) for _ in range(2))
    assert pack_products(program) == 0 and packed_nodes(program) == []
    assert torch.equal(scores(program, 7), scores(plain, 7))


def test_without_onednn_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, program = (program_of(layers(), Precision.FP32) for _ in range(2))
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert pack_products(program) == 0
    assert torch.equal(scores(program, 7), scores(plain, 7))


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
