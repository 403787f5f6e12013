import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from sharded_infer.specs.precision import Precision
from sharded_infer.towers.lowering.constants import constant_of
from sharded_infer.towers.lowering.fp32 import compute_in_fp32
from sharded_infer.towers.program.int8_linear import INT8_LINEAR
from tests.sharded_infer.towers.stored import Signature, read_back

WIDTH = 96
LOW = {torch.bfloat16, torch.float16, torch.int8, torch.uint8}


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Linear(WIDTH, 64, bias=False)
        self.up = nn.Linear(64, WIDTH)
        self.twice = nn.Linear(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, 1)

    def forward(self, embeddings: Tensor) -> Tensor:
        crossed = torch.addcmul(embeddings, embeddings, self.up(self.down(embeddings)))
        hidden = torch.softmax(self.twice(torch.relu(self.twice(crossed))), dim=1)
        scores: Tensor = self.last(hidden).squeeze(1)
        return scores


def layers() -> Layers:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Layers().eval()


def inputs(size: int) -> Tensor:
    return torch.randn(size, WIDTH, generator=torch.Generator().manual_seed(size))


def program_of(module: nn.Module, precision: Precision) -> GraphModule:
    return read_back(Signature(WIDTH).export(module, precision, [inputs(512)]))


def check_equal(program: GraphModule, module: nn.Module) -> None:
    """Its scores are the module's, and nothing in it is low-precision."""
    with torch.inference_mode():
        for size in (1, 2, 17):
            torch.testing.assert_close(
                program(inputs(size))[0], module(inputs(size)), rtol=1e-6, atol=1e-7
            )
    weights = [*program.parameters(), *program.buffers()]
    assert {weight.dtype for weight in weights} & LOW == set()
    arguments = [a for node in program.graph.nodes for a in (*node.args, *node.kwargs.values())]
    assert not any(argument in LOW for argument in arguments if isinstance(argument, torch.dtype))
    assert all(node.target is not INT8_LINEAR for node in program.graph.nodes)


@pytest.mark.parametrize(
    ("precision", "dtype"), [(Precision.BF16, torch.bfloat16), (Precision.FP16, torch.float16)]
)
def test_a_float_tower_computes_its_rounded_weights_in_fp32(
    precision: Precision, dtype: torch.dtype
) -> None:
    module = layers()
    program = program_of(module, precision)
    assert any(weight.dtype is dtype for weight in program.buffers())
    with torch.no_grad():
        for inner in (module.down, module.up, module.twice):
            for weight in inner.parameters():
                weight.copy_(weight.to(dtype))
    compute_in_fp32(program, [inputs(2)])
    check_equal(program, module)


def test_an_int8_tower_computes_its_stored_integers_times_their_scales_in_fp32() -> None:
    module = layers()
    program = program_of(module, Precision.INT8)
    lowered = [node for node in program.graph.nodes if node.target is INT8_LINEAR]
    weights = []
    for node in lowered:
        integers, scale, inverse_scale = (constant_of(program, node.args[at]) for at in (1, 2, 4))
        assert integers is not None and scale is not None and inverse_scale is not None
        weights.append(integers.double() * inverse_scale.double() * scale.double()[:, None])
    # A weight of two products stays as it is.
    with torch.no_grad():
        for layer, weight in zip((module.down, module.up), weights, strict=True):
            layer.weight.copy_(weight)
    compute_in_fp32(program, [inputs(2)])
    check_equal(program, module)
