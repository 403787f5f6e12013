from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from kernels.bags import Bags
from kernels.stored_rows import decode
from sharded_infer.errors import InputError, RequestError, RequestTooLargeError
from sharded_infer.lookups import share_lookups
from sharded_infer.lookups.placement import hold, share_of
from sharded_infer.lookups.shard_hosts import PieceBags
from sharded_infer.lookups.share_lookups import ShareLookups
from sharded_infer.lookups.steps import make_step
from tests.sharded_infer.lookups.test_batch_lookup import on_hosts
from tests.sharded_infer.lookups.test_plan_lookups import (
    BACKENDS,
    MIXED,
    SPEC,
    encoded_tables,
    placed_pieces,
    plan_of,
    stored_pieces,
)

pytestmark = pytest.mark.usefixtures("poisoned_memory")

# Host 4 has ranks 0 and 1.
PLACED = placed_pieces(on_hosts(plan_of(MIXED), (4, 4, 7)))


@pytest.fixture
def share(tmp_path: Path) -> ShareLookups:
    return share_on(tmp_path, max_answer_bytes=2**20)


def share_on(folder: Path, *, max_answer_bytes: int) -> ShareLookups:
    held = hold(share_of(PLACED, 4), stored_pieces(folder, encoded_tables()))
    return ShareLookups(SPEC, PLACED, held, 4, max_answer_bytes=max_answer_bytes)


def group_of(
    pieces: Sequence[int], lengths: Sequence[Sequence[int]], ids: Sequence[int]
) -> PieceBags:
    bags = Bags(torch.tensor(ids, dtype=torch.int64), torch.tensor(lengths, dtype=torch.int64))
    return PieceBags.of(np.array(pieces, np.int64), bags)


def test_entries_are_answered_beside_each_other_in_the_order_asked(share: ShareLookups) -> None:
    pieces = share_of(PLACED, 4)
    stored = encoded_tables()
    for asked in (range(len(pieces)), [5, 0, 3], [2, 2]):
        ids = [pieces[number].rows - 1 for number in asked]
        group = group_of(list(asked), [[1, 0]] * len(ids), ids)
        (pooled,), work, _ = share.look_up([group])
        assert sum(step[1] for step in work) == len(ids)
        assert not pooled[1].any()
        column = 0
        for number, row in zip(asked, ids, strict=True):
            piece = pieces[number]
            rows = decode(piece.table.row_format, stored[piece.table.name], piece.table.dim)
            last = piece.first_column + piece.columns
            wanted = rows[piece.first_row + row, piece.first_column : last]
            assert torch.equal(pooled[0, column : column + piece.columns], wanted)
            column += piece.columns
        assert pooled.shape == (2, column)


def test_tables_cut_by_rows_are_summed_whatever_their_pooling(share: ShareLookups) -> None:
    numbers = [p.number for p in share_of(PLACED, 4) if p.table.name == "user"]
    one, two = (
        share.look_up([group_of(numbers, [[n]] * len(numbers), [3] * n * len(numbers))]).pooled[0]
        for n in (1, 2)
    )
    assert numbers and torch.equal(two, 2 * one)


def test_several_groups_have_answers_of_their_own(share: ShareLookups) -> None:
    groups = [group_of([0, 1], [[1, 0, 2], [0, 1, 0]], [1, 2, 3, 4]), group_of([3], [[2]], [0, 1])]
    together = share.look_up(groups).pooled
    for group, pooled in zip(groups, together, strict=True):
        assert torch.equal(pooled, share.look_up([group]).pooled[0])
    assert share.backends == BACKENDS


GROUP = group_of([0, 1], [[1, 0], [0, 1]], [1, 2])
_NONE = torch.zeros(0, dtype=torch.int64)
NOTHING = PieceBags.of(_NONE.numpy(), Bags(_NONE, torch.zeros(0, 1, dtype=torch.int64)))


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ([], r"host 4: expected 1 to \d+ entries in all groups, got 0"),
        ([NOTHING], r"expected 1 to \d+ entries in all groups, got 0"),
        ([GROUP] * 40, r"expected 1 to \d+ entries in all groups, got 80"),
        ([GROUP, group_of([0, 99], [[1], [0]], [1])], r"group 1, entry 1: piece 99, expected 0 to"),
        ([group_of([-1], [[1]], [1])], r"group 0, entry 0: piece -1, expected 0 to \d+ of host 4"),
        ([group_of([0], [[]], [])], r"group 0: expected lengths \[1, R\] .*, got \[1, 0\]"),
        ([group_of([0, 1], [[1]], [1])], r"group 0: expected lengths \[2, R\] .*, got \[1, 1\]"),
        ([group_of([0], [[1], [0]], [1])], r"group 0: expected lengths \[1, R\] .*, got \[2, 1\]"),
        ([group_of([0], [[1, 1]], [1])], r"lengths of 0 .* sum to 1 id, got 1 to 1 with sum 2"),
        ([group_of([0], [[1]], [1, 2])], r"that sum to 2 ids, got 1 to 1 with sum 1"),
        ([group_of([0], [[2, -1]], [1])], r"that sum to 1 id, got -1 to 2 with sum 1"),
        ([group_of([0], [[2**62] * 4], [])], r"that sum to 0 ids, got 4611686018427387904 to"),
        (
            [group_of([0, 1], [[1, 1], [0, 1]], [1, 0, 15])],
            r"group 0, entry 1, bag 1: id 15 is outside piece 1 of table 'ads', expected 0 to 14",
        ),
        ([group_of([0], [[1]], [-1])], "entry 0, bag 0: id -1 is outside piece 0 of table 'ads'"),
    ],
)
def test_wrong_groups_are_refused(share: ShareLookups, groups: list[PieceBags], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        share.look_up(groups)
    assert share.look_up([GROUP]).pooled[0].isfinite().all()


def test_an_answer_that_would_be_too_large_is_refused(tmp_path: Path) -> None:
    share = share_on(tmp_path, max_answer_bytes=4 * 4 * 10)
    group_of_10, group_of_11 = (group_of([0], [[0] * bags], []) for bags in (10, 11))
    assert share.look_up([group_of_10]).pooled[0].shape == (10, 4)
    for groups in ([group_of_11], [group_of_10, group_of_10]):
        with pytest.raises(RequestTooLargeError, match=r"would be \d+ bytes, allowed are 160"):
            share.look_up(groups)


def test_a_kernel_that_cannot_read_a_format_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_lookups, "make_step", partial(make_step, backend="fbgemm"))
    placed = placed_pieces(plan_of(MIXED))
    held = hold(placed, stored_pieces(tmp_path, encoded_tables()))
    with pytest.raises(InputError, match="no kernel for bf16 tables"):
        ShareLookups(SPEC, placed, held, 0)


def test_arrays_apart_in_memory_are_checked_and_looked_up_too(share: ShareLookups) -> None:
    lengths = torch.tensor([[1, 2], [0, 1]])
    ids = torch.tensor([3, 14, 0, 9])
    bags = Bags(torch.stack([ids, ids], 1)[:, 0], torch.stack([lengths, lengths], 2)[:, :, 0])
    assert not bags.values.is_contiguous() and not bags.lengths.is_contiguous()
    group = PieceBags.of(np.array([0, 1]), bags)
    wanted = share.look_up([group_of([0, 1], lengths.tolist(), ids.tolist())]).pooled[0]
    assert torch.equal(share.look_up([group]).pooled[0], wanted)
    bags.values[1] = 15
    with pytest.raises(RequestError, match="entry 0, bag 1: id 15 is outside piece 0"):
        share.look_up([group])
