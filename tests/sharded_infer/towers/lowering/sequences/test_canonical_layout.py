from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.nn.functional import scaled_dot_product_attention

from kernels.product import product_dtypes
from sharded_infer.towers.lowering.packing import pack_products
from sharded_infer.towers.lowering.sequences.attention import (
    HeadsPass,
    fuse_attention,
    join_heads,
)
from sharded_infer.towers.lowering.sequences.canonical_layout import use_canonical_layout
from sharded_infer.towers.lowering.sequences.row_steps import RowPass, fuse_row_steps

DIM, HEADS, LONGEST = 16, 2, 30
ASSERTION = torch.ops.aten._assert_tensor_metadata.default
Computed = Callable[["Tower", Tensor], Tensor]


class Tower(nn.Module):
    def __init__(self, computed: Computed) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.computed = computed
        self.three, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.norm, self.place = nn.LayerNorm(DIM), nn.Parameter(torch.randn(LONGEST, DIM))
        self.wide = nn.LayerNorm(2 * DIM)
        self.torchs = nn.MultiheadAttention(DIM, HEADS)

    def forward(self, history: Tensor) -> Tensor:
        return self.computed(self, history)


def inputs(length: int) -> tuple[Tensor]:
    return (torch.randn(1, length, DIM, generator=torch.Generator().manual_seed(length)),)


def flattened(computed: Computed) -> GraphModule:
    tower = Tower(computed).eval().requires_grad_(False)
    length = torch.export.Dim("length", min=2, max=LONGEST)
    program = torch.export.export(tower, inputs(6), dynamic_shapes=({1: length},)).module()
    assert isinstance(program, GraphModule)
    for node in program.graph.find_nodes(op="call_function", target=ASSERTION):
        program.graph.erase_node(node)
    pack_products(program, product_dtypes())
    fuse_attention(program)
    runs = [inputs(3), inputs(5)]
    use_canonical_layout(program, runs)
    join_heads(program, runs)
    fuse_row_steps(program, runs, fewest=1)
    for count in (2, 9, LONGEST):
        torch.testing.assert_close(program(*inputs(count)), tower(*inputs(count)))
    return program


def calls(program: GraphModule, kind: type[nn.Module]) -> int:
    return sum(isinstance(one, kind) for one in program.modules())


def by_permuting(tower: Tower, history: Tensor) -> Tensor:
    length = history.shape[1]
    three = tower.three(tower.norm(history)).view(1, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
    query, key, value = three.unbind(0)
    mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
    return history + tower.out(mixed.transpose(1, 2).reshape(1, length, DIM))


def by_swapping(tower: Tower, history: Tensor) -> Tensor:
    turned = tower.norm(history).transpose(0, 1)
    query, key, value = (
        one.reshape(-1, HEADS, DIM // HEADS).transpose(0, 1).unsqueeze(0)
        for one in tower.three(turned).split(DIM, -1)
    )
    mixed = scaled_dot_product_attention(query, key, value).permute(2, 0, 1, 3)
    return history + tower.out(mixed.flatten(2)).transpose(0, 1)


def by_torchs_layer(tower: Tower, history: Tensor) -> Tensor:
    turned = tower.norm(history).transpose(0, 1)
    mixed, _ = tower.torchs(turned, turned, turned, need_weights=False)
    return history + mixed.transpose(0, 1)


@pytest.mark.parametrize("computed", [by_permuting, by_swapping, by_torchs_layer])
def test_heads_are_columns_of_rows(computed: Computed) -> None:
    program = flattened(computed)
    assert calls(program, HeadsPass) == 1 and calls(program, RowPass) == 2
    # What takes the results of passes, and nothing that moves numbers.
    moved = [node for node in program.graph.nodes if node.op == "call_function"]
    assert len(moved) <= 4


def places(tower: Tower, history: Tensor) -> Tensor:
    return tower.norm(history.squeeze(0) + tower.place[: history.shape[1]]).unsqueeze(0)


def repeated_places(tower: Tower, history: Tensor) -> Tensor:
    return tower.norm(history + tower.place[: history.shape[1]])


def joined(tower: Tower, history: Tensor) -> Tensor:
    rows = history.squeeze(0)
    return tower.wide(torch.cat([rows, rows * 2], 1)).unsqueeze(0)


@pytest.mark.parametrize("computed", [places, repeated_places, joined])
def test_positions_without_the_samples_axis_are_rows(computed: Computed) -> None:
    program = flattened(computed)
    [steps] = (one.steps.steps for one in program.modules() if isinstance(one, RowPass))
    assert len(steps) == (3 if computed is joined else 2)


def other_heads(tower: Tower, history: Tensor) -> Tensor:
    # Every second column is a head's.
    query = history.unflatten(2, (-1, HEADS)).permute(0, 3, 1, 2)
    mixed = scaled_dot_product_attention(query, query, query)
    return tower.norm(mixed.permute(0, 2, 3, 1).flatten(2))


def backwards(tower: Tower, history: Tensor) -> Tensor:
    return tower.norm(tower.out(history).flip(1)).transpose(1, 2)


@pytest.mark.parametrize("computed", [other_heads, backwards])
def test_other_orders_stay_what_they_are(computed: Computed) -> None:
    assert calls(flattened(computed), HeadsPass) == 0
