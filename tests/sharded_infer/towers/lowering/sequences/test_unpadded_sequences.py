from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.nn.functional import scaled_dot_product_attention, silu

from sharded_infer.towers.lowering.sequences.attention import AttentionPass, fuse_attention
from sharded_infer.towers.lowering.sequences.position_values import Symbol
from sharded_infer.towers.lowering.sequences.unpadded_sequences import (
    UnpaddedSequences,
    remove_padding,
)

DIM, LONGEST = 4, 20
N = Symbol(0, LONGEST)
ASSERTION = torch.ops.aten._assert_tensor_metadata.default
Computed = Callable[["Tower", Tensor, Tensor], Tensor]


class Tower(nn.Module):
    def __init__(self, computed: Computed) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.computed = computed
        self.rows = nn.Embedding(LONGEST, DIM)
        self.biases = nn.Parameter(torch.randn(LONGEST))
        self.register_buffer("waves", torch.randn(2 * LONGEST, DIM))

    def forward(self, history: Tensor, lengths: Tensor) -> Tensor:
        return self.computed(self, history, lengths)


def inputs(length: int) -> tuple[Tensor, Tensor]:
    return torch.randn(1, length, DIM), torch.tensor([length])


def exported(computed: Computed) -> tuple[Tower, GraphModule]:
    tower = Tower(computed).requires_grad_(False)
    length = torch.export.Dim("length", min=1, max=LONGEST)
    program = torch.export.export(tower, inputs(6), dynamic_shapes=({1: length}, {})).module()
    assert isinstance(program, GraphModule)
    # Programs have none when they are loaded.
    for node in program.graph.find_nodes(op="call_function", target=ASSERTION):
        program.graph.erase_node(node)
    program.recompile()
    return tower, program


WHOLE = UnpaddedSequences((N, None), (None, N), tuple(map(inputs, (3, 5, 1, LONGEST))))


def use_whole(program: GraphModule) -> int:
    return remove_padding(program, WHOLE)


def check(program: GraphModule, tower: Tower, most: float = 0.0) -> None:
    for length in (1, 2, 7, LONGEST):
        given = inputs(length)
        torch.testing.assert_close(program(*given), tower(*given), rtol=0, atol=most)


def calls(program: GraphModule) -> list[str]:
    """Remaining operators, except for views and sizes."""
    views = {"slice", "unsqueeze", "sym_size", "sub", "add"}
    return [
        node.target._opname
        for node in program.graph.nodes
        if node.op == "call_function"
        and isinstance(node.target, torch._ops.OpOverload)
        and node.target._opname not in views
    ]


def order(history: Tensor) -> Tensor:
    return torch.arange(history.shape[1])


def padding(history: Tensor, lengths: Tensor) -> Tensor:
    return (order(history) >= lengths.unsqueeze(1)).unsqueeze(2)


def used(history: Tensor, lengths: Tensor) -> Tensor:
    return (order(history) < lengths.unsqueeze(1)).unsqueeze(2)


def from_the_end(tower: Tower, history: Tensor, lengths: Tensor) -> Tensor:
    places = (lengths.unsqueeze(1) - 1 - order(history)).clamp(0, LONGEST - 1)
    return history + tower.rows(places)


def biased(tower: Tower, history: Tensor, lengths: Tensor) -> Tensor:
    places = order(history)
    distances = (places.unsqueeze(1) - places).clamp(0, LONGEST - 1)
    return tower.biases[distances] + history @ history.transpose(1, 2)


@pytest.mark.parametrize(
    "computed",
    [
        *(from_the_end, biased),
        # Hidden by a fill, by one as wide, by a choice, by a factor and by a sum.
        lambda _, history, lengths: history.masked_fill(padding(history, lengths), 0.0),
        lambda _, history, n: history.masked_fill(padding(history, n).expand_as(history), 0.0),
        lambda _, history, n: torch.where(used(history, n), history, torch.zeros_like(history)),
        lambda _, history, lengths: history * used(history, lengths).float(),
        lambda _, history, lengths: history + (1 - used(history, lengths).float()) * -1e9,
        # From the begin, from a place, the last, the first, and waves.
        lambda tower, history, lengths: history + tower.rows(order(history)),
        lambda tower, history, lengths: history + tower.waves[order(history) + 3],
        lambda _, history, lengths: history.index_select(1, (lengths - 1).clamp(min=0)),
        lambda _, history, lengths: history.index_select(1, torch.zeros_like(lengths)),
        lambda _, history, lengths: (
            history + torch.sin(order(history).unsqueeze(1) / 3.0).clamp(min=-0.5)
        ),
        lambda _, history, lengths: history + torch.outer(order(history), torch.arange(4.0)).cos(),
    ],
)
def test_what_padding_needs_is_left_out_and_what_positions_say_computed_once(
    computed: Computed,
) -> None:
    tower, program = exported(computed)
    assert use_whole(program) > 0
    assert calls(program) == (["transpose", "matmul"] if computed is biased else [])
    check(program, tower)


def with_numbers_of(numbers: Callable[[Tensor, Tensor], Tensor]) -> Computed:
    def computed(tower: Tower, history: Tensor, lengths: Tensor) -> Tensor:
        return history + numbers(order(history), lengths).float().unsqueeze(1)

    return computed


NUMBERS: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    # True of some lengths or positions alone.
    lambda order, lengths: order == LONGEST - 1,
    lambda order, lengths: order >= lengths - 1,
    # Changed at the longest, or at the shortest.
    lambda order, lengths: (lengths - 1 - order).clamp(0, LONGEST - 2),
    lambda order, lengths: (lengths - 2).clamp(min=0) - order,
    # Along two axes, and bits in place of truth.
    lambda order, lengths: (order > order.unsqueeze(1)).sum(1) + lengths,
    lambda order, lengths: ~(order - order) + lengths,
)


@pytest.mark.parametrize(
    "computed",
    [
        # By the whole's length at each position, cut in two, and by the order of others.
        lambda _, history, lengths: history / (order(history) + lengths).unsqueeze(1),
        lambda _, history, lengths: history.masked_fill(
            (order(history) >= lengths // 2).unsqueeze(1), 0.0
        ),
        lambda _, history, lengths: history.masked_fill(history.argsort(1) >= lengths, 0.0),
    ],
)
def test_what_is_not_padding_stays(computed: Computed) -> None:
    tower, program = exported(computed)
    before = calls(program)
    use_whole(program)
    assert set(before) - set(calls(program)) <= {"arange"}
    check(program, tower)


def of_one_more(tower: Tower, history: Tensor, lengths: Tensor) -> Tensor:
    """With an axis that grows with the positions and has one more."""
    length = history.shape[1]
    later = torch.ones(length, length + 1).tril()
    return history + later.sum(1).unsqueeze(1)


def filled_with_lengths(tower: Tower, history: Tensor, lengths: Tensor) -> Tensor:
    length = history.shape[1]
    return history / torch.full((length, 1), length)


def from_the_end_of_what_grows(tower: Tower, history: Tensor, lengths: Tensor) -> Tensor:
    """Index -1, the last of as many waves as there are positions."""
    places = order(history)
    return history + torch.cos(places / 3.0)[places - 1].unsqueeze(1)


@pytest.mark.parametrize(
    "computed",
    [
        *map(with_numbers_of, NUMBERS),
        # What the longest does not begin with.
        *(of_one_more, filled_with_lengths, from_the_end_of_what_grows),
    ],
)
def test_other_numbers_of_positions_keep_their_values(computed: Computed) -> None:
    tower, program = exported(computed)
    use_whole(program)
    check(program, tower)


def heads(history: Tensor) -> Tensor:
    return history.view(1, -1, 2, DIM // 2).transpose(1, 2)


def pointwise(tower: Tower, history: Tensor, lengths: Tensor) -> Tensor:
    places, parts = order(history), heads(history)
    scores = silu(parts @ parts.transpose(2, 3))
    return scores.masked_fill(places > places.unsqueeze(1), 0.0) @ parts


def hidden(value: float, later: int = 1) -> Computed:
    def computed(tower: Tower, history: Tensor, lengths: Tensor) -> Tensor:
        length, parts = history.shape[1], heads(history)
        mask = torch.ones(length, length, dtype=torch.bool).triu(later)
        scores = parts * 0.3 @ parts.transpose(2, 3)
        return scores.masked_fill(mask, value).softmax(-1) @ parts

    return computed


def attention_left(computed: Computed) -> list[AttentionPass]:
    tower, program = exported(computed)
    use_whole(program)
    fuse_attention(program, WHOLE.values(program))
    check(program, tower, 1e-6)
    return [one for one in program.modules() if isinstance(one, AttentionPass)]


@pytest.mark.parametrize("computed", [hidden(-torch.inf), hidden(-1e9)])
def test_attention_that_hides_later_keys_by_a_mask_is_causal(computed: Computed) -> None:
    [found] = attention_left(computed)
    assert found.attention.causal


@pytest.mark.parametrize("computed", [hidden(-5.0), hidden(-torch.inf, 2), hidden(-1e9, 0)])
def test_attention_that_hides_other_keys_is_not(computed: Computed) -> None:
    assert not any(found.attention.causal for found in attention_left(computed))


def with_a_triangle(tower: Tower, history: Tensor, lengths: Tensor) -> Tensor:
    places, parts = order(history), heads(history)
    seen = places <= places.unsqueeze(1)
    return scaled_dot_product_attention(parts, parts, parts, attn_mask=seen)


@pytest.mark.parametrize("computed", [pointwise, with_a_triangle])
def test_attention_needs_no_mask(computed: Computed) -> None:
    tower, program = exported(computed)
    use_whole(program)
    assert fuse_attention(program, WHOLE.values(program)) == 1
    [(name, found)] = (
        (name, one) for name, one in program.named_modules() if isinstance(one, AttentionPass)
    )
    [node] = program.graph.find_nodes(op="call_module", target=name)
    assert node.args[3:5] == (None, None) and found.attention.causal
    check(program, tower, 1e-5)
