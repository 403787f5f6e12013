import pytest
import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from sharded_infer.engines.device.tower.graph import cross_step, fuse_crosses
from sharded_infer.towers.lowering.tensor_kinds import kinds_of

aten = torch.ops.aten
BATCH, WIDTH = 3, 5
BF16, FP16 = torch.bfloat16, torch.float16


def inputs_of(factor: torch.dtype = BF16, rows: int = BATCH) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    made = [torch.randn(BATCH, WIDTH, generator=generator) for _ in range(3)]
    return [made[0][:rows], made[1], made[2].to(factor)]


def program_of(*casts: torch.dtype, keep: bool, twice: bool = False) -> GraphModule:
    """A cross of the inputs, its casts, and itself where it is kept."""
    graph = Graph()
    given = [graph.placeholder(name) for name in ("values", "first", "factor")]
    whole = graph.call_function(aten.addcmul.default, tuple(given))
    results: list[Node] = [whole] if keep else []
    for cast in casts * (2 if twice else 1):
        results.append(graph.call_function(aten.to.dtype, (whole, cast)))
    graph.output(tuple(results))
    return GraphModule(torch.nn.Module(), graph)


def crosses(program: GraphModule) -> list[Node]:
    return program.graph.find_nodes(op="call_function", target=cross_step)


def checked(program: GraphModule, inputs: list[Tensor]) -> int:
    """Fuses, and compares all bits; returns the number of fused casts."""
    expected = program(*inputs)
    fused = fuse_crosses(program, kinds_of(program, inputs))
    for one, other in zip(program(*inputs), expected, strict=True):
        assert one.dtype is other.dtype and torch.equal(one, other)
    assert fused == len(crosses(program))
    return fused


@pytest.mark.parametrize("factor", [torch.float32, BF16, FP16])
@pytest.mark.parametrize("low", [BF16, FP16])
@pytest.mark.parametrize("keep", [True, False])
def test_a_cast_of_a_cross_is_made_with_it(
    factor: torch.dtype, low: torch.dtype, keep: bool
) -> None:
    program = program_of(low, keep=keep, twice=True)
    assert checked(program, inputs_of(factor)) == 1
    # Nothing is left of the operators, and what nobody reads is not asked for.
    names = {node.target for node in program.graph.nodes}
    assert aten.to.dtype not in names and aten.addcmul.default not in names
    [step] = crosses(program)
    assert step.args[-1] is keep


def test_what_is_not_cast_or_not_even_stays() -> None:
    assert checked(program_of(keep=True), inputs_of()) == 0
    assert checked(program_of(BF16, keep=True), inputs_of(rows=1)) == 0
    double = [one.double() for one in inputs_of(torch.float32)]
    assert checked(program_of(BF16, keep=True), double) == 0
