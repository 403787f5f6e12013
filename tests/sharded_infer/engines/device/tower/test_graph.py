import io

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from sharded_infer.engines.device.tower.graph import (
    check_capturable,
    fuse_activations,
    move_program,
    weight_bytes,
)
from sharded_infer.errors import TowerError
from sharded_infer.specs.precision import Precision
from sharded_infer.towers.lowering.tensor_kinds import kinds_of
from sharded_infer.towers.program.archive import pack_program, read_packed
from sharded_infer.towers.tower import export_tower

WIDTH = 8
META = torch.device("meta")
aten = torch.ops.aten


def program_of(module: nn.Module, precision: Precision = Precision.FP32) -> GraphModule:
    program = export_tower(
        module, dense={}, embedding_width=WIDTH, outputs=("score",), precision=precision
    )
    return read_packed(io.BytesIO(pack_program(program)), "the tower")


def made(kind: type[nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(6)
        return kind().eval()


def targets(program: GraphModule) -> list[object]:
    return [node.target for node in program.graph.nodes if node.op == "call_function"]


class Factories(nn.Module):
    def forward(self, embeddings: Tensor) -> Tensor:
        batch = embeddings.shape[0]
        columns = torch.arange(WIDTH, device="cpu").to(torch.float32)
        ones = torch.ones(batch, WIDTH) + torch.full((WIDTH,), 0.5)
        eye = torch.eye(WIDTH) + torch.zeros_like(torch.linspace(0, 1, WIDTH))
        rows, _ = torch.tril_indices(WIDTH, WIDTH, offset=-1)
        picked = (embeddings * ones)[:, rows].sum(1)
        constant = torch.tensor(0.5) + torch.tensor([1.0, 2.0]).sum().cpu()
        return (embeddings @ eye * columns).sum(1) + picked + constant.to("cpu")


def test_nothing_that_a_moved_program_makes_lies_elsewhere() -> None:
    program = program_of(made(Factories))
    moved = move_program(program, META)
    assert {buffer.device for buffer in moved.buffers()} <= {META}
    (score,) = moved(torch.empty(3, WIDTH, device=META))
    assert score.device == META and score.shape == (3,)
    # And the program that was moved is as it was.
    x = torch.randn(3, WIDTH)
    torch.testing.assert_close(program(x)[0], Factories()(x))
    torch.testing.assert_close(move_program(program, torch.device("cpu"))(x)[0], program(x)[0])


def test_constants_that_share_memory_share_it_on_the_device() -> None:
    memory = torch.arange(12.0)
    root, graph = nn.Module(), torch.fx.Graph()
    parts = {"one": memory.view(3, 4), "two": memory.view(3, 4).t(), "three": memory[4:6]}
    for name, part in parts.items():
        root.register_buffer(name, part)
    graph.output(tuple(graph.get_attr(name) for name in parts))
    program = GraphModule(root, graph)
    moved = move_program(program, torch.device("cpu"))
    for found, part in zip(moved(), parts.values(), strict=True):
        assert torch.equal(found, part) and found.stride() == part.stride()
        assert found.data_ptr() != part.data_ptr()
    assert weight_bytes(moved) == weight_bytes(program) == 48
    # From one device to another as well.
    there = move_program(move_program(program, META), META)
    assert weight_bytes(there) == 48
    for found, part in zip(there(), parts.values(), strict=True):
        assert found.device == META and found.shape == part.shape
        assert found.stride() == part.stride()


class Layers(nn.Module):
    """Two products with a ReLU that can be fused, one whose result is read twice, the last."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, 16), nn.Linear(16, 16)
        self.three, self.four = nn.Linear(16, 16), nn.Linear(16, 1)

    def forward(self, embeddings: Tensor) -> Tensor:
        hidden = torch.relu(self.two(torch.relu(self.one(embeddings))))
        third = self.three(hidden)
        scores: Tensor = self.four(torch.relu(third) + third).squeeze(1)
        return scores


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16, Precision.FP16])
def test_activations_join_their_products(precision: Precision) -> None:
    program = program_of(made(Layers), precision)
    x = torch.randn(30, WIDTH)
    expected = program(x)[0]
    products = [node for node in program.graph.nodes if node.target is aten.linear.default]
    fused = fuse_activations(program, kinds_of(program, [x]))
    assert list(fused) == products[:2]
    assert targets(program).count(aten._addmm_activation.default) == 2
    assert targets(program).count(aten.linear.default) == 2
    assert targets(program).count(aten.relu.default) == 1
    assert len(list(program.buffers())) == 8
    torch.testing.assert_close(program(x)[0], expected, rtol=1e-5, atol=1e-5)


def test_what_reads_values_on_the_host_is_refused() -> None:
    class Masked(nn.Module):
        def forward(self, embeddings: Tensor) -> Tensor:
            filled = torch.ops.aten.index_put(embeddings, [embeddings > 0], torch.tensor(1.0))
            scores: Tensor = filled.sum(1)
            return scores

    class Hot(nn.Module):
        def forward(self, embeddings: Tensor) -> Tensor:
            return embeddings[:, :3].sum(1)

    x = torch.zeros(2, WIDTH)
    program = program_of(made(Masked))
    with pytest.raises(TowerError, match="x.pt2: aten.index_put.default with a mask waits"):
        check_capturable(program, kinds_of(program, [x]), "x.pt2")
    program = program_of(made(Hot))
    check_capturable(program, kinds_of(program, [x]), "x.pt2")
    given = program.graph.find_nodes(op="placeholder")[0]
    with program.graph.inserting_after(given):
        program.graph.call_function(aten.one_hot.default, (given,))
    with pytest.raises(TowerError, match="one_hot without num_classes"):
        check_capturable(program, {}, "x.pt2")
