from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.nn import functional

from sharded_infer.towers.lowering.canonical_forms import multiply_pointwise

CONVOLUTION = torch.ops.aten.conv1d.default


class Tower(nn.Module):
    def __init__(self, computed: Callable[["Tower", Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.computed = computed
        self.one, self.plain = nn.Conv1d(6, 9, 1), nn.Conv1d(9, 6, 1, bias=False)
        self.wide, self.grouped = nn.Conv1d(6, 6, 3, padding=1), nn.Conv1d(6, 6, 1, groups=2)
        self.strided, self.padded = nn.Conv1d(6, 6, 1, stride=2), nn.Conv1d(6, 6, 1, padding=1)

    def forward(self, history: Tensor) -> Tensor:
        return self.computed(self, history)


def replaced(computed: Callable[[Tower, Tensor], Tensor]) -> tuple[int, GraphModule]:
    tower = Tower(computed).eval().requires_grad_(False)
    given = torch.randn(3, 5, 6)
    program = torch.export.export(tower, (given,)).module()
    assert isinstance(program, GraphModule)
    made = multiply_pointwise(program)
    torch.testing.assert_close(program(given), tower(given))
    return made, program


def layers(tower: Tower, history: Tensor) -> Tensor:
    inner = functional.dropout(tower.one(history.transpose(1, 2)), training=False)
    found: Tensor = tower.plain(functional.gelu(inner, approximate="tanh"))
    return found.transpose(1, 2) + history


def test_layers_of_one_position_are_products() -> None:
    made, program = replaced(layers)
    assert made == 2
    assert not program.graph.find_nodes(op="call_function", target=CONVOLUTION)
    # What is of each number comes before the views that turn it.
    order = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert order.index("aten.gelu.default") == order.index("aten.linear.default") + 2


def pairs(tower: Tower, history: Tensor) -> Tensor:
    """As xDeepFM: products of fields, whose layout einsum takes from its factors."""
    turned = history.transpose(1, 2).contiguous()
    both = torch.einsum("bhd,bmd->bhmd", tower.one(turned), turned)
    return both.view(both.shape[0], -1, both.shape[3])


def test_views_of_what_is_computed_from_a_product_stay_possible() -> None:
    assert replaced(pairs)[0] == 1


@pytest.mark.parametrize("name", ["wide", "grouped", "strided", "padded"])
def test_others_stay(name: str) -> None:
    made, program = replaced(lambda tower, history: getattr(tower, name)(history.transpose(1, 2)))
    assert made == 0
    assert program.graph.find_nodes(op="call_function", target=CONVOLUTION)
