"""Layers on pairs: torch's numbers, on every instruction set, and the same bits for every batch."""

from itertools import pairwise

import pytest
import torch

from kernels.abi.pair_layers import Activation
from kernels.machine import InstructionSet
from kernels.sequences.pair_layers import PairLayer, PairLayers
from tests.kernels.drawn import FUSED, every_set, numbers
from tests.reference.pair_layers import pair_layers_by_torch


def layers_of(
    widths: tuple[int, ...], activation: Activation, instruction_set: InstructionSet | None
) -> PairLayers:
    layers = [
        PairLayer(
            numbers(outputs, inputs, seed=at) / inputs**0.5,
            numbers(outputs, seed=at + 10) if at != 1 else None,
            Activation.LINEAR if outputs == 1 else activation,
            numbers(outputs, seed=at + 20)
            if activation is Activation.SLOPE and outputs > 1
            else None,
        )
        for at, (inputs, outputs) in enumerate(pairwise(widths))
    ]
    return PairLayers(layers, instruction_set=instruction_set)


# Below, at and above a tile's 6 rows and 64 columns, and its lanes of 16; one layer to three.
@every_set
@pytest.mark.parametrize("activation", list(Activation))
@pytest.mark.parametrize(
    ("widths", "length"), [((5, 1), 1), ((3, 7, 1), 16), ((16, 36, 1), 83), ((9, 12, 6, 1), 130)]
)
def test_layers_are_those_of_torch(
    instruction_set: InstructionSet, activation: Activation, widths: tuple[int, ...], length: int
) -> None:
    layers = layers_of(widths, activation, instruction_set)
    positions, candidates = numbers(length, widths[0], seed=1), numbers(4, widths[0], seed=2)
    added = numbers(length, widths[1], seed=3), numbers(4, widths[1], seed=4)
    for more in ((), added, (None, added[1])):
        found = layers(positions, candidates, *more)
        expected = pair_layers_by_torch(layers, positions, candidates, *more)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@every_set
def test_a_pair_has_the_same_bits_in_every_batch(instruction_set: InstructionSet) -> None:
    layers = layers_of((16, 36, 1), Activation.SLOPE, instruction_set)
    positions, candidates = numbers(83, 16, seed=1), numbers(9, 16, seed=2)
    whole = layers(positions, candidates)
    for count in (1, 4):
        for length in (1, 20, 80):
            part = layers(positions[:length], candidates[-count:])
            assert torch.equal(part, whole[-count:, :length])


@pytest.mark.parametrize("activation", list(Activation))
def test_instruction_sets_with_fused_products_have_the_same_bits(activation: Activation) -> None:
    inputs = numbers(83, 16, seed=1), numbers(5, 16, seed=2)
    found = [layers_of((16, 36, 1), activation, one)(*inputs) for one in FUSED]
    assert all(torch.equal(one, found[0]) for one in found)


@every_set
@pytest.mark.parametrize("activation", list(Activation))
def test_what_is_no_number_stays_with_its_pairs(
    instruction_set: InstructionSet, activation: Activation
) -> None:
    layers = layers_of((16, 36, 1), activation, instruction_set)
    positions, candidates = numbers(20, 16, seed=1), numbers(5, 16, seed=2)
    clean = layers(positions, candidates)
    positions[7, 3] = candidates[2, 4] = torch.nan
    found = layers(positions, candidates)
    strange = torch.zeros(5, 20, dtype=torch.bool)
    strange[2], strange[:, 7] = True, True
    assert torch.equal(found.isnan(), strange) and torch.equal(found[~strange], clean[~strange])
