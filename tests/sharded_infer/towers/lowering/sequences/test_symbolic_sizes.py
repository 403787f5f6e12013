from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from sharded_infer.towers.lowering.sequences.symbolic_sizes import Number, Symbol, SymbolicSizes
from sharded_infer.towers.lowering.tensor_kinds import kinds_of

LONGEST = 9
N = Symbol(0, LONGEST)
Computed = Callable[[Tensor, Tensor], Tensor]


class Program(nn.Module):
    def __init__(self, computed: Computed) -> None:
        super().__init__()
        self.computed = computed

    def forward(self, history: Tensor, lengths: Tensor) -> Tensor:
        return self.computed(torch.arange(history.shape[1]), lengths)


def known(computed: Computed) -> Number | None:
    length = torch.export.Dim("length", min=1, max=LONGEST)
    given = torch.zeros(1, 5, 2), torch.tensor([5])
    exported = torch.export.export(
        Program(computed), given, dynamic_shapes=({1: length}, {})
    ).module()
    assert isinstance(exported, GraphModule)
    numbers = SymbolicSizes(kinds_of(exported, given))
    [_, lengths] = exported.graph.find_nodes(op="placeholder")
    numbers.know(lengths, Number(0, 1, 0, N))
    for node in exported.graph.nodes:
        if node.target is torch.ops.aten.sym_size.int:
            numbers.know(node, Number(0, 1, 0, N))
        elif node.op == "call_function":
            numbers.learn(node)
    [results] = exported.graph.output_node().args
    return numbers.of(results[0])


@pytest.mark.parametrize(
    ("computed", "expected"),
    [
        (lambda order, lengths: order, Number(0, 0, 1, N, -1)),
        (lambda order, lengths: lengths - 1 - order, Number(-1, 1, -1, N, -1)),
        (lambda order, lengths: (order + 2).unsqueeze(1), Number(2, 0, 1, N, -2)),
        (lambda order, lengths: order.unsqueeze(0).unsqueeze(-1), Number(0, 0, 1, N, -2)),
        (lambda order, lengths: order - order, Number(0)),
        (lambda order, lengths: order[-1], Number(-1, 1, 0, N)),
        (lambda order, lengths: order[lengths - 1], Number(-1, 1, 0, N)),
        (lambda order, lengths: (3 - order).unsqueeze(1)[-2, :], Number(5, -1, 0, N)),
        (lambda order, lengths: (order + 4)[0], Number(4)),
        (lambda order, lengths: torch.sub(lengths, order, alpha=2), Number(0, 1, -2, N, -1)),
        (lambda order, lengths: 3 - order, Number(3, 0, -1, N, -1)),
        (lambda order, lengths: (lengths - 1).clamp(min=0).view(1, 1, 1), Number(-1, 1, 0, N)),
        (lambda order, lengths: (lengths - 1 - order).clamp(0, 8), Number(-1, 1, -1, N, -1)),
        (lambda order, lengths: order >= lengths.unsqueeze(1), Number(0)),
        (lambda order, lengths: ~(order >= lengths.unsqueeze(1)), Number(1)),
        (lambda order, lengths: (order < lengths).float().unsqueeze(1), Number(1)),
        (lambda order, lengths: (1 - (order < lengths).long()) * -1e9, Number(0)),
        (lambda order, lengths: order == 9, Number(0)),
        (lambda order, lengths: lengths.bool(), Number(1)),
        (lambda order, lengths: (order - order).bool(), Number(0)),
        (lambda order, lengths: lengths.float() - 1, Number(-1, 1, 0, N)),
        (lambda order, lengths: torch.zeros_like(order).masked_fill(order == 9, 4), Number(0)),
    ],
)
def test_numbers_are_known(computed: Computed, expected: Number) -> None:
    assert known(computed) == expected


@pytest.mark.parametrize(
    "computed",
    [
        lambda order, lengths: order[lengths - 2],
        # True of some lengths or positions alone.
        lambda order, lengths: order == 8,
        lambda order, lengths: order > 0,
        lambda order, lengths: order >= lengths - 1,
        # Changed at the longest, or at the shortest.
        lambda order, lengths: (lengths - 1 - order).clamp(0, 7),
        lambda order, lengths: (lengths - 2).clamp(min=0),
        # Positions along two axes.
        lambda order, lengths: order - order.unsqueeze(1),
        lambda order, lengths: order > order.unsqueeze(1),
        # Each place has another number than before.
        lambda order, lengths: order.unsqueeze(1).reshape(-1),
        # Other dtypes.
        lambda order, lengths: order.bool(),
        lambda order, lengths: lengths.to(torch.int8),
        # Bits, not truth.
        lambda order, lengths: ~(order - order),
        lambda order, lengths: order * 2,
        lambda order, lengths: (1 - (order < lengths).long()) * -torch.inf,
    ],
)
def test_others_are_not(computed: Computed) -> None:
    assert known(computed) is None


def test_numbers_of_two_sequences_have_no_sum() -> None:
    other = Number(0, 1, 0, Symbol(1, LONGEST))
    assert Number(0, 1, 0, N).added(other, 1) is None
    assert Number(0, 1, 0, N).added(Number(3), -1) == Number(-3, 1, 0, N)
