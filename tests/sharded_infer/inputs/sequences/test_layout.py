"""Sequences padded to one length, beside a loop over their places."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from sharded_infer.inputs.id_policy import InputPolicy
from sharded_infer.inputs.model_input import JaggedBatch, ModelInput
from sharded_infer.inputs.sequences.layout import GRAIN, LaidOut, Packed, SequenceLayout
from sharded_infer.inputs.sequences.work import BatchWork
from sharded_infer.specs.model_spec import ModelSpec, TableSpec, TowerSpec
from sharded_infer.specs.sequence_spec import SequenceSpec

SEQUENCE = SequenceSpec(max_length=20, features=("h", "a"), dense={"age": 2}, ids=("h",))
SPEC = ModelSpec(
    "ranker",
    (
        TableSpec("item", 50, 8, features=("c", "h"), out_of_range="ignore", padding_idx=0),
        TableSpec("action", 4, 4, features=("a",)),
    ),
    sequences={"h": SEQUENCE},
)


def batch_of(lengths: NDArray[np.int64]) -> ModelInput:
    """Ids count from 1, so that each tells its place; those of `c` are 9."""
    total = int(lengths.sum())
    numbers = np.arange(2 * total, dtype=np.float32).view(np.uint32).astype(np.int64)
    counted = np.arange(total)
    rows = counted % 49 + 1, counted % 4
    values = np.concatenate([np.full(len(lengths), 9), *rows, numbers, 2**40 + counted])
    every = np.stack([np.ones_like(lengths), lengths, lengths, 2 * lengths, lengths])
    return ModelInput(len(lengths), (JaggedBatch((0, 1, 2, 3, 4), values, every),), ())


def places_of(laid_out: LaidOut, row: int) -> NDArray[np.int64]:
    """`[B, L]` of one feature: its ids where the places have one, -1 elsewhere."""
    lengths = laid_out.bags.lengths
    first = int(lengths[:row].sum())
    found = np.full(lengths.shape[1], -1)
    found[lengths[row] > 0] = laid_out.bags.values[first : first + int(lengths[row].sum())]
    return found.reshape(len(laid_out.lengths), -1)


@pytest.mark.parametrize("pad_to", ["longest", "max_length"])
@pytest.mark.parametrize("pad", ["left", "right"])
@pytest.mark.parametrize("keep", ["first", "last"])
@pytest.mark.parametrize("longest", [0, 5, 30])
def test_each_place_has_the_id_of_a_loop(longest: int, keep: str, pad: str, pad_to: str) -> None:
    sequence = replace(SEQUENCE, keep=keep, pad=pad, pad_to=pad_to)
    spec = replace(SPEC, sequences={"h": sequence})
    lengths = np.random.default_rng(longest).integers(0, longest + 1, 7)
    lengths[3] = longest
    [found] = SequenceLayout(spec).lay_out(batch_of(lengths))
    padded = 20 if pad_to == "max_length" or longest > 20 - GRAIN else GRAIN
    assert found.padded_length == padded
    expected = np.full((7, padded), -1)
    numbers = np.zeros((7, padded, 2), np.float32)
    ids = np.zeros((7, padded), np.int64)
    start = 0
    for sample, length in enumerate(lengths.tolist()):
        kept = min(length, 20)
        first = start + (length - kept if keep == "last" else 0)
        at = padded - kept if pad == "left" else 0
        for step in range(kept):
            expected[sample, at + step] = (first + step) % 49 + 1
            numbers[sample, at + step] = 2 * (first + step), 2 * (first + step) + 1
            ids[sample, at + step] = 2**40 + first + step
        start += length
    assert np.array_equal(places_of(found, 0), expected)
    assert np.array_equal(places_of(found, 1) >= 0, expected >= 0)
    assert np.array_equal(found.companions[0], numbers)
    assert np.array_equal(found.companions[1], ids) and found.companions[1].dtype == np.int64
    assert np.array_equal(found.lengths, np.minimum(lengths, 20))


@pytest.mark.parametrize("longest", [1, 5, 30])
@pytest.mark.parametrize("requests", [1, 7])
def test_packed_positions_are_those_of_each_request(requests: int, longest: int) -> None:
    generator = np.random.default_rng(longest)
    for _ in range(20):
        lengths = generator.integers(0, longest + 1, requests)
        firsts = generator.integers(0, lengths + 1)
        counts = generator.integers(0, lengths - firsts + 1)
        packed = Packed.of(0, firsts, counts, np.ones_like(lengths))
        [found] = SequenceLayout(SPEC).lay_out(batch_of(lengths), packed=packed)
        starts = np.cumsum(lengths) - lengths + firsts
        expected = [
            np.arange(start, start + max(count, 1)) if count else [-1]
            for start, count in zip(starts.tolist(), counts.tolist(), strict=True)
        ]
        order = np.concatenate(expected)
        there = order >= 0
        assert found.padded_length == found.bags.batch_size == len(order)
        ids = np.where(there, order % 49 + 1, -1)
        assert np.array_equal(places_of(found._replace(lengths=np.zeros(1)), 0)[0], ids)
        assert np.array_equal(found.bags.lengths[1], there)
        numbers = np.where(there[:, None], np.stack([2 * order, 2 * order + 1], 1), 0)
        assert np.array_equal(found.companions[0][0], numbers)
        assert np.array_equal(found.companions[1][0], np.where(there, 2**40 + order, 0))
        assert np.array_equal(found.lengths, counts)


def test_an_id_that_is_left_out_leaves_its_place_empty() -> None:
    # 0 is padding, 77 outside a table that ignores such ids.
    values = np.array([9, 5, 0, 77, 6, 0, 1, 2, 3, *range(8), 5, 0, 77, 6])
    lengths = np.array([[1], [4], [4], [8], [4]])
    batch = ModelInput(1, (JaggedBatch((0, 1, 2, 3, 4), values, lengths),), ())
    checked = InputPolicy(SPEC).apply(batch)
    [found] = SequenceLayout(SPEC).lay_out(checked)
    assert places_of(found, 0)[0, :5].tolist() == [5, -1, -1, 6, -1]
    assert places_of(found, 1)[0, :5].tolist() == [0, 1, 2, 3, -1]
    assert found.companions[1][0, :5].tolist() == [5, 0, 77, 6, 0]
    assert checked.ids_outside == 1
    assert found.lengths.tolist() == [4]


def test_only_the_other_features_are_pooled() -> None:
    layout = SequenceLayout(SPEC)
    [pooled] = layout.pooled(batch_of(np.array([2, 3])))
    assert pooled.features == (0,)
    assert pooled.values.tolist() == [9, 9]
    assert layout.features == ((1, 2),)


WORK_SPEC = ModelSpec(
    "ranker",
    (TableSpec("item", 50, 8, features=("c", "h", "a")),),
    sequences={"h": SequenceSpec(max_length=20, features=("h", "a"))},
)
ONCE = replace(WORK_SPEC, tower=TowerSpec(user_inputs=("h",)))


def group(first: int, lengths: list[list[int]]) -> JaggedBatch:
    counts = np.array(lengths, np.int64)
    features = tuple(range(first, first + len(lengths)))
    return JaggedBatch(features, np.zeros(int(counts.sum()), np.int64), counts)


def test_positions_beyond_the_longest_do_not_count() -> None:
    lengths = [0, 8, 9, 300]
    batch = ModelInput(4, (group(0, [[1] * 4, lengths, lengths]),), ())
    assert BatchWork(WORK_SPEC).units(batch) == 4 + 0 + 1 + 2 + 3
    with_ids = replace(WORK_SPEC.sequences["h"], ids=("h",))
    spec = replace(WORK_SPEC, sequences={"h": with_ids})
    batch = ModelInput(4, (group(0, [[1] * 4, lengths, lengths, lengths]),), ())
    assert BatchWork(spec).units(batch) == 4 + 0 + 1 + 2 + 3


@pytest.mark.parametrize(("spec", "units"), [(WORK_SPEC, 5 + 2 * 2 + 3 * 1), (ONCE, 5 + 2 + 1)])
def test_what_is_computed_once_counts_once(spec: ModelSpec, units: int) -> None:
    own, shared = group(0, [[1] * 5]), group(1, [[16, 3], [16, 3]])
    batch = ModelInput(5, (own, shared), (), repeats=np.array([2, 3]))
    assert BatchWork(spec).units(batch) == units
    alone = ModelInput(5, (own, group(1, [[16], [16]])), ())
    assert BatchWork(spec).units(alone) == 5 + (10 if spec is WORK_SPEC else 2)
