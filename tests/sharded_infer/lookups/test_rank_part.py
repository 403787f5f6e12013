"""The compiled copying of lookups' parts beside torch's operators: the same bits."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.bags import Bags
from sharded_infer.errors import InternalError
from sharded_infer.lookups import native_parts
from sharded_infer.lookups.columns import column_runs
from sharded_infer.lookups.native_parts import KeptIds
from sharded_infer.lookups.rank_part import RankPart, selections_of, write_parts
from tests.reference.rank_part import divide_by_torch, select_by_torch, write_by_torch

pytestmark = pytest.mark.usefixtures("poisoned_memory")

Runs = list[tuple[int, int, bool]]
# Hashes of raw ids.
HALF, LAST = 2**63, 2**64 - 1


def part_of(
    positions: list[int],
    rows: list[tuple[int, int]] | None = None,
    runs: Runs | None = None,
    hashes: list[tuple[int, int]] | None = None,
) -> RankPart:
    first_rows, ends = np.array(rows or [(0, 0)], np.int64).T.copy()
    first_hashes, last_hashes = np.array(hashes or [(0, 0)], np.uint64).T.copy()
    return RankPart(
        positions=np.array(positions, np.int64),
        reads_all=False,
        most_reads=max(map(positions.count, positions)),
        kept=KeptIds(
            None if rows is None else (first_rows, ends),
            None if hashes is None else (first_hashes, last_hashes),
        ),
        runs=np.array(column_runs(runs or []), np.int64).reshape(-1, 4),
        only_run=None,
        rank=0,
        row_bytes=np.arange(7, 7 + len(positions)),
    )


def bags_of(lengths: NDArray[np.int64], *, weighted: bool) -> Bags:
    generator = np.random.default_rng(1)
    count = int(lengths.sum())
    weights = torch.from_numpy(generator.standard_normal(count, np.float32)) if weighted else None
    values = torch.from_numpy(generator.integers(0, 20, count))
    return Bags(values, torch.from_numpy(lengths), weights)


def lengths_of(features: int, bags: int) -> NDArray[np.int64]:
    return np.random.default_rng(2).integers(0, 5, (features, bags))


LENGTHS = {
    "some": lengths_of(4, 6),
    "none": np.zeros((4, 3), np.int64),
    "one bag": lengths_of(4, 1),
    "no bags": lengths_of(4, 0),
    "apart in memory": lengths_of(4, 12)[:, ::2],
    "many": lengths_of(4, 40_000),
}


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize(
    "part",
    [
        part_of([0, 1, 2, 3]),
        part_of([2]),
        part_of([3, 0, 3, 3, 1]),
        part_of([0, 1, 2, 3], [(0, 10), (10, 20), (5, 6), (0, 20)]),
        part_of([1, 1, 2], [(0, 10), (10, 20), (20, 30)]),
        part_of([2, 2, 0, 3], hashes=[(0, HALF - 1), (HALF, LAST), (0, LAST), (HALF, HALF)]),
    ],
    ids=["all", "one", "repeated", "rows", "rows of one", "hashes"],
)
def test_the_same_bags_are_selected(part: RankPart, lengths: str, weighted: bool) -> None:
    bags = bags_of(LENGTHS[lengths], weighted=weighted)
    found, expected = part.select(bags), select_by_torch(part, bags)
    assert torch.equal(found.values, expected.values)
    assert torch.equal(found.lengths, expected.lengths)
    assert (found.weights is None) is (expected.weights is None) is not weighted
    if found.weights is not None and expected.weights is not None:
        assert torch.equal(found.weights, expected.weights)


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_several_ranks_select_the_same_bags_at_once(lengths: str, weighted: bool) -> None:
    bags = bags_of(LENGTHS[lengths], weighted=weighted)
    parts = [
        part_of([0, 1, 2, 3]),
        part_of([2, 1, 2], [(0, 10), (10, 20), (10, 20)]),
        part_of([3]),
        part_of([0], [(30, 40)]),
        part_of([3, 3, 0]),
        part_of([1, 1], hashes=[(HALF, LAST), (0, HALF - 1)]),
    ]
    together = selections_of(parts)
    assert together is not None
    for _ in range(2):
        every, row_bytes = together.select(bags)
        for part, chosen, counted in zip(parts, every, row_bytes, strict=True):
            found, expected = chosen.bags(), select_by_torch(part, bags)
            assert chosen.id_count == len(expected.values)
            assert chosen.bag_count == expected.lengths.shape[1]
            assert counted == int(expected.lengths.numpy().sum(1) @ part.row_bytes)
            assert torch.equal(found.values, expected.values)
            assert torch.equal(found.lengths, expected.lengths)
            assert (found.weights is None) is not weighted
            if found.weights is not None and expected.weights is not None:
                assert torch.equal(found.weights, expected.weights)


def test_two_halves_of_all_hashes_have_every_id_once() -> None:
    bags = bags_of(LENGTHS["many"], weighted=False)
    halves = [part_of([2], hashes=[ends]).select(bags) for ends in ((0, HALF - 1), (HALF, LAST))]
    whole = part_of([2]).select(bags)
    assert torch.equal(halves[0].lengths + halves[1].lengths, whole.lengths)
    assert 0 < halves[0].lengths.sum() < whole.lengths.sum()
    both = torch.cat([half.values for half in halves])
    assert torch.equal(both.sort().values, whole.values.sort().values)


def test_one_rank_selects_by_itself() -> None:
    assert selections_of([part_of([0, 1])]) is None


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.int32)


ROWS = {
    "each its own": (7, None),
    "all share one": (1, None),
    "some share": (3, [1, 4, 2]),
    "none for one": (3, [0, 7, 0]),
}


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(
    "runs",
    [
        [(3, 5, False)],
        [(8, 2, True), (0, 4, True)],
        [(0, 2, False), (2, 3, False), (9, 1, True), (9, 1, True)],
    ],
)
def test_the_same_columns_are_written_and_no_others(runs: Runs, rows: str) -> None:
    count, given = ROWS[rows]
    repeats = None if given is None else torch.tensor(given)
    generator = torch.Generator().manual_seed(4)
    found = torch.randn(count, sum(width for _, width, _ in runs), generator=generator)
    memory = torch.randn(7, 14, generator=generator)
    memory[0, 8] = -0.0
    part, expected = part_of([0], runs=runs), memory.clone()
    # Columns of a wider matrix, as where samples share something.
    part.write(found, repeats, memory[:, 1:13])
    write_by_torch(part, found, repeats, expected[:, 1:13])
    assert torch.equal(bits(memory), bits(expected))


@pytest.mark.parametrize("rows", ROWS)
def test_several_ranks_write_in_turn(rows: str) -> None:
    count, given = ROWS[rows]
    repeats = None if given is None else torch.tensor(given)
    generator = torch.Generator().manual_seed(6)
    memory = torch.randn(7, 12, generator=generator)
    expected = memory.clone()
    ranks = [[(2, 4, False)], [(2, 4, True), (8, 1, False)], [(3, 2, True)]]
    listed = [
        (part_of([0], runs=runs), torch.randn(count, sum(r[1] for r in runs), generator=generator))
        for runs in ranks
    ]
    write_parts(listed, repeats, memory)
    for part, found in listed:
        write_by_torch(part, found, repeats, expected)
    assert torch.equal(bits(memory), bits(expected))


@pytest.mark.parametrize("rows", ROWS)
def test_the_same_sums_are_divided(rows: str) -> None:
    count, given = ROWS[rows]
    repeats = None if given is None else torch.tensor(given)
    lengths = torch.from_numpy(np.random.default_rng(3).integers(0, 50, (3, count)))
    means = np.array([(2, 0, 5), (0, 7, 4)])
    memory = torch.randn(7, 12, generator=torch.Generator().manual_seed(5))
    expected = memory.clone()
    native_parts.divide_means(lengths, repeats, means, memory)
    divide_by_torch(means, lengths, repeats, expected)
    assert torch.equal(bits(memory), bits(expected))
    assert torch.equal(memory[:, 5:7], expected[:, 5:7])


@pytest.mark.parametrize("given", [[1, 1, 1], [5, 5, 5], [8, 0, 0], [0, 0, 0]])
def test_repeats_of_another_number_of_rows_are_our_bug(given: list[int]) -> None:
    memory, repeats = torch.zeros(9, 4), torch.tensor(given)
    with pytest.raises(InternalError, match="repeats: expected 7 rows in all, got"):
        part_of([0], runs=[(0, 4, False)]).write(torch.ones(3, 4), repeats, memory[1:8])
    lengths, means = torch.ones(1, 3, dtype=torch.int64), np.array([(0, 0, 4)])
    with pytest.raises(InternalError, match="repeats: expected 7 rows in all, got"):
        native_parts.divide_means(lengths, repeats, means, memory[1:8])
    assert not memory[0].any() and not memory[8].any()
