"""Attention: torch's numbers, on every instruction set, and the same bits for every batch."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kernels.abi.attention import Weights
from kernels.machine import InstructionSet
from kernels.sequences.attention import Attention
from tests.kernels.drawn import FUSED, every_set, numbers


def heads_of(samples: int, length: int, heads: int, width: int, seed: int) -> tuple[Tensor, ...]:
    """Queries, keys and values as a tower has them: parts of one product's columns."""
    parts = numbers(samples, length, 3 * heads * width, seed=seed).chunk(3, 2)
    return tuple(one.unflatten(2, (heads, -1)).transpose(1, 2) for one in parts)


def later(length: int) -> Tensor:
    order = torch.arange(length)
    return order > order.unsqueeze(1)


@every_set
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("length", "width"), [(1, 1), (6, 16), (17, 5), (83, 32), (130, 70)])
def test_softmax_is_torchs(
    instruction_set: InstructionSet, causal: bool, length: int, width: int
) -> None:
    query, key, value = heads_of(2, length, 3, width, seed=1)
    attention = Attention(causal=causal, instruction_set=instruction_set)
    expected = scaled_dot_product_attention(query, key, value, is_causal=causal)
    torch.testing.assert_close(attention(query, key, value), expected, rtol=1e-5, atol=1e-5)


@every_set
@pytest.mark.parametrize("weights", list(Weights))
@pytest.mark.parametrize("queries", [1, 7, 40])
def test_biases_masks_and_other_lengths_are_those_of_torch(
    instruction_set: InstructionSet, weights: Weights, queries: int
) -> None:
    query, key, value = (
        numbers(2, 3, length, width, seed=width)
        for length, width in ((queries, 9), (41, 9), (41, 20))
    )
    attention = Attention(weights, 0.3, 41.0, instruction_set=instruction_set)
    for bias_shape in ((queries, 41), (2, 1, queries, 41), (2, 3, 1, 1)):
        bias = numbers(*bias_shape, seed=4)
        for mask in (None, numbers(2, 1, queries, 41, seed=5) > 0, numbers(41, seed=6) > 0):
            found = attention(query, key, value, bias, mask)
            expected = attention.by_torch(query, key, value, bias, mask)
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@every_set
@pytest.mark.parametrize("weights", list(Weights))
def test_a_query_has_the_same_bits_in_every_batch(
    instruction_set: InstructionSet, weights: Weights
) -> None:
    attention = Attention(weights, causal=True, instruction_set=instruction_set)
    query, key, value = heads_of(3, 83, 2, 16, seed=2)
    whole = attention(query, key, value)
    for length in (1, 20, 48):
        part = attention(*(one[1:2, :, :length] for one in (query, key, value)))
        assert torch.equal(part, whole[1:2, :, :length])


def test_instruction_sets_with_fused_products_have_the_same_bits() -> None:
    inputs = heads_of(2, 83, 2, 16, seed=2)
    for weights in Weights:
        found = [Attention(weights, instruction_set=one)(*inputs) for one in FUSED]
        assert all(torch.equal(one, found[0]) for one in found)


@every_set
@pytest.mark.parametrize("weights", list(Weights))
@pytest.mark.parametrize("gaps", [False, True])
def test_heads_may_lie_side_by_side(
    instruction_set: InstructionSet, weights: Weights, gaps: bool
) -> None:
    heads, width, value_width = 3, 8, 5
    rows, others = numbers(2, 41, 80, seed=1), numbers(2, 20, 80, seed=2)
    if gaps:  # columns that do not lie side by side are torch's work
        rows = rows.transpose(1, 2).contiguous().transpose(1, 2)
    columns = [(7, width), (2, width), (30, value_width)]
    attention = Attention(weights, 0.3, 41.0, instruction_set=instruction_set)
    bias, mask = numbers(2, 1, 20, 41, seed=3), numbers(20, 41, seed=4) > 0
    found = attention.of_heads(others, rows, rows, bias, mask, heads=heads, columns=columns)
    divided = [
        one[..., first : first + heads * size].unflatten(2, (heads, size)).transpose(1, 2)
        for one, (first, size) in zip((others, rows, rows), columns, strict=True)
    ]
    assert torch.equal(found, attention(*divided, bias, mask).transpose(1, 2).flatten(2))


@every_set
@pytest.mark.parametrize("weights", list(Weights))
def test_queries_may_begin_anywhere(instruction_set: InstructionSet, weights: Weights) -> None:
    attention = Attention(weights, causal=True, instruction_set=instruction_set)
    query, key, value = heads_of(2, 40, 2, 16, seed=2)
    whole = attention(query, key, value)
    for first, count in (([0, 3], 1), ([39, 20], 1), ([7, 0], 30)):
        rows = torch.tensor(first).view(-1, 1, 1, 1) + torch.arange(count).view(1, 1, -1, 1)
        chosen, wanted = (one.take_along_dim(rows, 2) for one in (query, whole))
        begin = torch.tensor(first)
        assert torch.equal(attention(chosen, key, value, first=begin), wanted)
        expected = attention.by_torch(chosen, key, value, first=begin)
        torch.testing.assert_close(wanted, expected, rtol=1e-5, atol=1e-5)


@every_set
@pytest.mark.parametrize("weights", list(Weights))
def test_large_scores_do_not_overflow(instruction_set: InstructionSet, weights: Weights) -> None:
    query, key, value = (60 * one for one in heads_of(1, 19, 2, 16, seed=3))
    attention = Attention(weights, 1.0, instruction_set=instruction_set)
    expected = attention.by_torch(query, key, value)
    torch.testing.assert_close(attention(query, key, value), expected, rtol=1e-4, atol=1e-3)


@every_set
@pytest.mark.parametrize("weights", list(Weights))
def test_what_is_no_number_reaches_the_queries_behind_it(
    instruction_set: InstructionSet, weights: Weights
) -> None:
    query, key, value = (one.clone() for one in heads_of(1, 40, 2, 16, seed=4))
    attention = Attention(weights, causal=True, instruction_set=instruction_set)
    key[0, 1, 24] = torch.nan
    strange = attention(query, key, value).isnan().any(-1)
    assert bool(strange[0, 1, 24:].all()) and not bool(
        strange[0, 0].any() | strange[0, 1, :24].any()
    )


@every_set
def test_keys_that_a_mask_hides_weigh_nothing(instruction_set: InstructionSet) -> None:
    query, key, value = heads_of(1, 40, 2, 16, seed=5)
    masked = Attention(Weights.SILU, instruction_set=instruction_set)
    causal = Attention(Weights.SILU, causal=True, instruction_set=instruction_set)
    assert torch.equal(masked(query, key, value, None, later(40)), causal(query, key, value))
    assert not masked(query, key, value, None, torch.ones(40, 40, dtype=torch.bool)).any()
