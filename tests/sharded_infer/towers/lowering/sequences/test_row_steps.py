import operator
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.fx import GraphModule
from torch.nn import functional

from kernels.abi.row_steps import StepKind
from sharded_infer.towers.lowering.packing import pack_products
from sharded_infer.towers.lowering.sequences.row_steps import RowPass, fuse_row_steps

DIM = 16


class Layers(nn.Module):
    def __init__(self, mix: Callable[["Layers", Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM, bias=False)
        self.large = nn.Linear(DIM, 2**14)
        self.norm, self.plain = nn.LayerNorm(DIM), nn.LayerNorm(DIM, elementwise_affine=False)
        self.constant = nn.Parameter(torch.randn(DIM))
        self.by_position = nn.Parameter(torch.randn(5, DIM))
        self.mix = mix

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        return self.mix(self, one, other)


def rows(length: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(length)
    return (
        torch.randn(2, length, DIM, generator=generator),
        torch.randn(2, length, DIM, generator=generator),
    )


def fused(mix: Callable[[Layers, Tensor, Tensor], Tensor]) -> tuple[GraphModule, list[RowPass]]:
    """The program, checked against the module at several lengths, and its passes."""
    module = Layers(mix)
    length = Dim("length", min=1, max=30)
    shapes = {"one": {1: length}, "other": {1: length}}
    program = torch.export.export(module, rows(7), dynamic_shapes=shapes).module()
    pack_products(program)  # type: ignore[arg-type]
    made = fuse_row_steps(program, (rows(3), rows(5)))  # type: ignore[arg-type]
    passes = [one for one in program.modules() if isinstance(one, RowPass)]
    assert made == len(passes)
    with torch.inference_mode():
        for length in (1, 5, 30):
            expected = module(*rows(length))
            torch.testing.assert_close(program(*rows(length)), expected, rtol=1e-4, atol=1e-4)
    return program, passes  # type: ignore[return-value]


def block(layers: Layers, one: Tensor, other: Tensor) -> Tensor:
    steps = one + layers.second(other)
    gates, values, _ = functional.silu(layers.first(layers.norm(steps))).chunk(3, 2)
    inner = layers.plain(values).relu() * gates - layers.constant
    return steps + functional.dropout(inner * 0.5, training=False)


def test_a_block_is_one_pass() -> None:
    program, [one] = fused(block)
    kinds = [step.kind for step in one.steps.steps]
    assert kinds.count(StepKind.LINEAR) == kinds.count(StepKind.NORM) == 2
    left = {node.target for node in program.graph.nodes if node.op == "call_function"}
    assert left == {operator.getitem}  # the choice of its result
    assert one.steps.outputs == (len(kinds) - 1,)


def joined(layers: Layers, one: Tensor, other: Tensor) -> Tensor:
    wide = torch.cat([one, layers.norm(other), one * other], -1)
    return torch.cat([wide.relu()[..., 8:40], layers.constant.expand_as(one)], 2)


def test_columns_are_joined_in_the_pass() -> None:
    program, [one] = fused(joined)
    kinds = [step.kind for step in one.steps.steps]
    # Three columns are joined by two steps.
    assert kinds.count(StepKind.JOINED) == 3 and StepKind.RELU in kinds
    assert not program.graph.find_nodes(op="call_function", target=torch.ops.aten.cat.default)


def mixed(layers: Layers, one: Tensor, other: Tensor) -> Tensor:
    before = layers.norm(one + other)
    first, _, third = layers.first(before).split(DIM, dim=-1)
    along = (first.cumsum(1) * third).flip(1)
    return before + layers.second(layers.norm(along)) + first[..., :DIM].cumsum(1)


def test_what_mixes_rows_lies_between_passes() -> None:
    program, passes = fused(mixed)
    assert len(passes) == 2
    # What is before it and what is read after it; results of the second one wait for nothing.
    assert [len(one.steps.outputs) for one in passes] == [2, 1]
    order = [node.target for node in program.graph.nodes]
    assert order.index("_rows_0") < order.index(torch.ops.aten.cumsum.default)
    assert order.index(torch.ops.aten.flip.default) < order.index("_rows_1")


def beside_a_fixed_number(layers: Layers, one: Tensor, other: Tensor) -> Tensor:
    """Three rows at any length, as many as there are in one of the runs."""
    fixed = layers.by_position[:3].expand(2, 3, DIM)
    summed = layers.second(layers.plain(fixed)).sum(1, keepdim=True)
    return layers.second(layers.norm(one)) + summed


def test_rows_of_other_numbers_are_in_other_passes() -> None:
    assert len(fused(beside_a_fixed_number)[1]) == 2


def pairs(layers: Layers, one: Tensor, other: Tensor) -> Tensor:
    scores = one @ other.transpose(1, 2)  # as wide as the sequence is long
    return (scores.relu() * scores) @ other


@pytest.mark.parametrize(
    "mix",
    [
        # One product alone, sums alone, a large product, and numbers by position.
        lambda layers, one, other: layers.first(one).cumsum(1)[..., :DIM] + other,
        lambda layers, one, other: (one + other).relu() * one,
        lambda layers, one, other: layers.large(one).relu().sum(-1, keepdim=True) + other,
        lambda layers, one, other: (one.unsqueeze(2) + layers.by_position).sum(2).cumsum(1) + other,
        pairs,
    ],
)
def test_what_is_not_worth_a_pass_or_no_step_stays(
    mix: Callable[[Layers, Tensor, Tensor], Tensor],
) -> None:
    assert fused(mix)[1] == []
