from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.export import Dim
from torch.fx import GraphModule
from torch.nn.functional import scaled_dot_product_attention

from sharded_infer.towers.lowering.sequences.attention import (
    HeadsPass,
    fuse_attention,
    read_columns,
)
from sharded_infer.towers.lowering.sequences.canonical_layout import use_canonical_layout

LENGTH = 21
Mix = Callable[[Tensor, Tensor, Tensor], Tensor]
Divide = Callable[[Tensor], Tensor]
Join = Callable[[Tensor], Tensor]


def weights_read_twice(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    weights = (query @ key.transpose(-2, -1)).softmax(-1)
    return weights @ value + weights.sum()


def masked_before(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = (query @ key.transpose(-2, -1)).masked_fill(torch.eye(LENGTH) > 0, -1e9)
    return scores.softmax(-1) @ value


def fused(mix: Mix) -> tuple[GraphModule, int]:
    class Mixing(torch.nn.Module):
        def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return mix(query, key, value)

    program = torch.export.export(Mixing(), heads()).module()
    made = fuse_attention(program)  # type: ignore[arg-type]
    return program, made  # type: ignore[return-value]


def heads() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    one, two, three = torch.randn(3, 2, 3, LENGTH, 8, generator=generator)
    return one, two, three


@pytest.mark.parametrize(
    "mix",
    [
        weights_read_twice,
        masked_before,
        # Another axis, and a mask of numbers.
        lambda query, key, value: (query @ key.transpose(-2, -1)).softmax(-2) @ value,
        lambda query, key, value: scaled_dot_product_attention(
            query, key, value, torch.eye(LENGTH)
        ),
    ],
)
def test_other_attention_stays_as_it_is(mix: Mix) -> None:
    program, made = fused(mix)
    assert made == 0
    assert torch.equal(program(*heads()), mix(*heads()))


class Divided(torch.nn.Module):
    def __init__(self, divide: Divide, join: Join) -> None:
        super().__init__()
        self.divide, self.join = divide, join

    def forward(self, rows: Tensor) -> Tensor:
        query, key, value = (self.divide(one) for one in rows.split([8, 8, 12], dim=2))
        return self.join(scaled_dot_product_attention(query, key, value, is_causal=True))


def by_view(rows: Tensor) -> Tensor:
    return rows.contiguous().view(rows.shape[0], rows.shape[1], 2, -1).transpose(1, 2)


def to_rows(mixed: Tensor) -> Tensor:
    return mixed.transpose(1, 2).flatten(2)


def by_reshape(mixed: Tensor) -> Tensor:
    return mixed.transpose(2, 1).contiguous().reshape(mixed.shape[0], mixed.shape[2], -1)


WHOLE = ((0, 4), (8, 4), (16, 6))
APART = ((0, 4), (0, 4), (16, 6))


@pytest.mark.parametrize(
    ("divide", "join", "columns"),
    [
        (by_view, to_rows, WHOLE),
        (lambda rows: rows.unflatten(2, (2, -1)).transpose(-3, -2), by_reshape, WHOLE),
        # Heads that are no columns are put side by side first.
        (lambda rows: by_view(rows.cumsum(1) if rows.shape[2] == 8 else rows), to_rows, APART),
        (by_view, lambda mixed: mixed.sum(1), WHOLE),
    ],
)
def test_passes_read_and_write_columns(
    divide: Divide, join: Join, columns: tuple[tuple[int, int], ...]
) -> None:
    module, rows = Divided(divide, join), torch.randn(1, 7, 28)
    shapes = {"rows": {1: Dim("length", min=2, max=30)}}
    program = torch.export.export(module, (rows,), dynamic_shapes=shapes).module()
    assert fuse_attention(program) == 1  # type: ignore[arg-type]
    given = [(torch.randn(1, length, 28),) for length in (3, 5)]
    assert use_canonical_layout(program, given) > 0  # type: ignore[arg-type]
    assert read_columns(program, given) == 1  # type: ignore[arg-type]
    [found] = (one for one in program.modules() if isinstance(one, HeadsPass))
    assert found.columns == columns
    torch.testing.assert_close(program(rows), module(rows), rtol=1e-5, atol=1e-5)


def test_a_pass_on_heads_that_are_no_columns_keeps_them() -> None:
    module, rows = (
        Divided(lambda one: torch.stack(one.chunk(2, 2), 1), to_rows),
        torch.randn(1, 7, 28),
    )
    program = torch.export.export(module, (rows,)).module()
    assert fuse_attention(program) == 1  # type: ignore[arg-type]
    use_canonical_layout(program, [(rows,)])  # type: ignore[arg-type]
    assert not any(isinstance(one, HeadsPass) for one in program.modules())
    torch.testing.assert_close(program(rows), module(rows), rtol=1e-5, atol=1e-5)
