from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.nn.functional import silu

from kernels.product import product_dtypes
from sharded_infer.towers.lowering.packing import linear_of, pack_products
from sharded_infer.towers.lowering.sequences.divided_products import divide_products

DIM = 8
Computed = Callable[["Tower", Tensor], Tensor]


class Tower(nn.Module):
    def __init__(self, computed: Computed) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.computed = computed
        self.first, self.plain = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, 2 * DIM, bias=False)

    def forward(self, history: Tensor) -> Tensor:
        return self.computed(self, history)


def inputs(length: int) -> tuple[Tensor]:
    return (torch.randn(1, length, DIM, generator=torch.Generator().manual_seed(length)),)


def divided(computed: Computed) -> list[tuple[int, ...]]:
    """Shapes of the weights of a program, which is checked against the module."""
    tower = Tower(computed).requires_grad_(False)
    length = torch.export.Dim("length", min=2, max=30)
    program = torch.export.export(tower, inputs(6), dynamic_shapes=({1: length},)).module()
    assert isinstance(program, GraphModule)
    pack_products(program, product_dtypes())
    divide_products(program, (inputs(3), inputs(5)))
    for count in (2, 9, 30):
        torch.testing.assert_close(program(*inputs(count)), tower(*inputs(count)))
    found = (linear_of(program, node) for node in program.graph.nodes)
    return sorted(tuple(one.weight.shape) for one in found if one is not None)


def last_query(tower: Tower, history: Tensor) -> Tensor:
    query, key, value = tower.first(history).chunk(3, 2)
    return (query[:, -1:] @ key.transpose(1, 2)).softmax(2) @ value


def last_gate_and_query(tower: Tower, history: Tensor) -> Tensor:
    gate, key, query = silu(tower.first(history)).split([4, DIM, 12], -1)
    last = torch.cat([gate[:, -1:], query[:, -1:]], 2)
    return last.sum() + key.cumsum(1)


def first_row(tower: Tower, history: Tensor) -> Tensor:
    gate, rest = tower.plain(history).relu().chunk(2, 2)
    place = torch.zeros(1, dtype=torch.int64)
    return gate.index_select(1, place) * rest.sum(1, keepdim=True)


@pytest.mark.parametrize(
    ("computed", "shapes"),
    [
        (last_query, [(DIM, DIM), (2 * DIM, DIM)]),
        (last_gate_and_query, [(DIM, DIM), (16, DIM)]),
        (first_row, [(DIM, DIM), (DIM, DIM)]),
    ],
)
def test_one_row_is_computed_of_what_one_row_is_read_of(
    computed: Computed, shapes: list[tuple[int, ...]]
) -> None:
    assert divided(computed) == shapes


def all_rows(tower: Tower, history: Tensor) -> Tensor:
    query, key, value = tower.first(history).chunk(3, 2)
    return (query @ key.transpose(1, 2)).softmax(2) @ value


def one_row_of_all(tower: Tower, history: Tensor) -> Tensor:
    one, other = tower.plain(history).chunk(2, 2)
    return one[:, -1:] * other[:, -1:]


def both(tower: Tower, history: Tensor) -> Tensor:
    one, other = tower.plain(history).chunk(2, 2)
    return one[:, -1:] * other + one


def different_rows(tower: Tower, history: Tensor) -> Tensor:
    one, other, third = tower.first(history).chunk(3, 2)
    place = torch.ones(1, dtype=torch.int64)
    return one[:, -1:] * other.index_select(1, place) + third


def read_before(tower: Tower, history: Tensor) -> Tensor:
    whole = tower.plain(history)
    one, other = silu(whole).chunk(2, 2)
    return one[:, -1:] * other + whole.sum()


@pytest.mark.parametrize("computed", [all_rows, one_row_of_all, both, different_rows, read_before])
def test_other_products_stay(computed: Computed) -> None:
    assert len(divided(computed)) == 1
