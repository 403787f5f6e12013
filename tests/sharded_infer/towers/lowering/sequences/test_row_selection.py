from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn.functional import scaled_dot_product_attention, silu

from sharded_infer.towers.lowering.packing import pack_products
from sharded_infer.towers.lowering.sequences.attention import (
    HeadsPass,
    fuse_attention,
    read_columns,
)
from sharded_infer.towers.lowering.sequences.canonical_layout import use_canonical_layout
from sharded_infer.towers.lowering.sequences.row_selection import select_rows

DIM, HEADS, MOST = 16, 2, 30
Read = Callable[[Tensor, Tensor], Tensor]


class Block(nn.Module):
    def __init__(self, *, pointwise: bool) -> None:
        super().__init__()
        self.pointwise = pointwise
        self.norm, self.inputs = nn.LayerNorm(DIM), nn.Linear(DIM, 4 * DIM)
        self.output = nn.Linear(DIM, DIM)
        self.biases = nn.Parameter(torch.randn(MOST))

    def forward(self, steps: Tensor) -> Tensor:
        batch, length, _ = steps.shape
        gates, *parts = self.inputs(self.norm(steps)).chunk(4, 2)
        query, key, value = (
            one.view(batch, length, HEADS, DIM // HEADS).transpose(1, 2) for one in parts
        )
        if self.pointwise:
            order = torch.arange(length)
            bias = self.biases[(order.unsqueeze(1) - order).clamp(min=0)].unsqueeze(0).unsqueeze(0)
            scores = silu(query @ key.transpose(2, 3) + bias)
            mixed = scores.masked_fill(order > order.unsqueeze(1), 0.0) / MOST @ value
        else:
            mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
        joined = mixed.transpose(1, 2).contiguous().view(batch, length, DIM)
        return steps + self.output(joined * gates)


class User(nn.Module):
    def __init__(self, read: Read, *, pointwise: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block(pointwise=pointwise) for _ in range(2))
        self.norm, self.read = nn.LayerNorm(DIM), read

    def forward(self, history: Tensor, lengths: Tensor) -> Tensor:
        for block in self.blocks:
            history = block(history)
        return self.read(self.norm(history), lengths)


def gathered(steps: Tensor, lengths: Tensor) -> Tensor:
    last = (lengths - 1).clamp(min=0).view(-1, 1, 1).expand(-1, -1, steps.shape[2])
    return steps.gather(1, last).squeeze(1)


def indexed(steps: Tensor, lengths: Tensor) -> Tensor:
    return steps[torch.arange(steps.shape[0]), lengths - 1]


def inputs(length: int, used: int | None = None) -> tuple[Tensor, Tensor]:
    history = torch.randn(1, length, DIM, generator=torch.Generator().manual_seed(length))
    return history, torch.tensor([length if used is None else used])


def selected(read: Read, *, pointwise: bool) -> tuple[nn.Module, torch.fx.GraphModule, int]:
    module = User(read, pointwise=pointwise)
    shapes = {"history": {1: Dim("length", min=2, max=MOST)}, "lengths": None}
    program = torch.export.export(module, inputs(7), dynamic_shapes=shapes).module()
    # As in the graph of a user's stage.
    for node in program.graph.find_nodes(op="call_function", target=torch.ops.aten.view.default):
        node.target = torch.ops.aten.reshape.default
    pack_products(program)  # type: ignore[arg-type]
    assert fuse_attention(program) == 2  # type: ignore[arg-type]
    use_canonical_layout(program, (inputs(3), inputs(5)))  # type: ignore[arg-type]
    moved = select_rows(program, (inputs(3), inputs(5)))  # type: ignore[arg-type]
    # What reads the columns of all heads follows, as in a tower.
    assert read_columns(program, (inputs(3), inputs(5))) == 2  # type: ignore[arg-type]
    return module, program, moved  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("read", "pointwise"),
    [
        *((read, pointwise) for read in (gathered, indexed) for pointwise in (False, True)),
        (lambda steps, lengths: steps[:, -1] + lengths.unsqueeze(1), True),
        (lambda steps, lengths: steps[:, -2], False),
        (lambda steps, lengths: steps[:, 0], False),
    ],
)
def test_the_last_layer_computes_one_row(read: Read, pointwise: bool) -> None:
    module, program, moved = selected(read, pointwise=pointwise)
    assert moved == 1
    counts: list[int] = []
    for one in program.modules():
        if isinstance(one, HeadsPass):
            one.register_forward_pre_hook(lambda _, given: counts.append(given[0].shape[1]))
    with torch.inference_mode():
        for length, used in ((2, 2), (9, 9), (9, 4), (30, 1)):
            given = inputs(length, used)
            torch.testing.assert_close(program(*given), module(*given), rtol=1e-4, atol=1e-5)
            assert counts == [length, 1]
            counts.clear()


def test_positions_outside_fail_as_before() -> None:
    module, program, _ = selected(indexed, pointwise=False)
    with torch.inference_mode():
        given = inputs(5, 0)  # position -1 is the last
        torch.testing.assert_close(program(*given), module(*given), rtol=1e-4, atol=1e-5)
        for used in (6, -5):
            with pytest.raises((IndexError, RuntimeError)):
                program(*inputs(5, used))


@pytest.mark.parametrize(
    "read",
    [
        # Twice, other ones of each column, and several.
        lambda steps, _: steps[:, -1] + steps.mean(1),
        lambda steps, _: steps.gather(1, torch.arange(DIM).view(1, 1, -1) % 2).squeeze(1),
        lambda steps, _: steps[torch.tensor([0, 0]), torch.tensor([0, 1])].sum(0, keepdim=True),
    ],
)
def test_rows_that_others_read_are_computed(read: Read) -> None:
    module, program, moved = selected(read, pointwise=False)
    assert moved == 0
    torch.testing.assert_close(program(*inputs(6)), module(*inputs(6)), rtol=1e-4, atol=1e-5)
