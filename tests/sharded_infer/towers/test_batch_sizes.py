import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharded_infer.towers.batch_sizes import KERNEL_BYTES, BatchSizes, padded_size, padded_sizes


@given(st.integers(1, 10**6))
def test_a_batch_is_padded_by_an_eighth_at_most(batch: int) -> None:
    padded = padded_size(batch)
    assert batch <= padded <= max(16, 1.125 * batch + 3)
    if batch > 16:
        assert padded - batch <= 0.12 * padded + 1


@given(st.integers(1, 10**6))
def test_a_padded_size_is_padded_to_itself(batch: int) -> None:
    assert padded_size(padded_size(batch)) == padded_size(batch)


@given(st.integers(1, 10**6))
def test_a_larger_batch_is_not_padded_to_less(batch: int) -> None:
    assert padded_size(batch) <= padded_size(batch + 1)


def test_small_batches_are_not_padded() -> None:
    assert [padded_size(batch) for batch in range(1, 17)] == list(range(1, 17))


def test_the_steps_grow_with_the_size() -> None:
    wanted = {17: 20, 20: 20, 64: 64, 65: 72, 256: 256, 257: 272, 1024: 1024, 1025: 1088}
    assert {batch: padded_size(batch) for batch in wanted} == wanted


@given(st.integers(1, 5000))
def test_all_sizes_of_smaller_batches_are_listed_once_in_order(largest: int) -> None:
    sizes = padded_sizes(largest)
    assert sizes == sorted({padded_size(batch) for batch in range(1, largest + 1)})


def test_there_are_few_sizes_and_little_padding() -> None:
    assert len(padded_sizes(1024)) == 16 + 12 + 24 + 48
    shares = [1 - batch / padded_size(batch) for batch in range(65, 4096)]
    assert sum(shares) / len(shares) < 0.02


def test_no_samples_need_no_size() -> None:
    assert padded_sizes(0) == []


SMALL, LARGE = BatchSizes(500_000, 500.0), BatchSizes(5_300_000, 23.0)
TOWERS = st.sampled_from([SMALL, BatchSizes(1_600_000, 100.0), LARGE])
ALL = st.one_of(TOWERS, st.just(BatchSizes(0, 20.0)))


@given(ALL, st.integers(1, 70_000))
def test_pieces_hold_a_batch_and_only_the_last_is_padded(sizes: BatchSizes, batch: int) -> None:
    *whole, last = sizes.pieces(batch)
    assert 0 < batch - sum(whole) <= last
    assert {*whole, last} <= set(sizes.sizes)


@given(ALL, st.integers(1, 70_000))
def test_a_run_size_is_run_as_it_is_and_grows_with_the_batch(sizes: BatchSizes, batch: int) -> None:
    run = sizes.run_size(batch)
    assert batch <= run == sizes.run_size(run) <= sizes.run_size(batch + 1)


@given(TOWERS, st.integers(1, 2000))
def test_every_size_of_smaller_batches_is_known_beforehand(sizes: BatchSizes, largest: int) -> None:
    known = sizes.up_to(largest)
    assert known == sorted(set(known)) and set(known) <= set(sizes.sizes)
    assert {piece for batch in range(1, largest + 1) for piece in sizes.pieces(batch)} == set(known)


@pytest.mark.parametrize("kernel_bytes", [0, 530_000, 1_600_000, 3_600_000, 5_300_000])
def test_kernels_of_all_sizes_take_no_more_than_they_may(kernel_bytes: int) -> None:
    sizes = BatchSizes(kernel_bytes, 20.0).sizes
    assert len(sizes) * kernel_bytes <= KERNEL_BYTES
    assert len(sizes) >= 9 and sizes[0] == 1 and sizes[-1] == 512


def test_a_tower_without_kernels_runs_at_every_padded_size_and_once_at_the_ends() -> None:
    sizes = BatchSizes(0, 20.0)
    assert sizes.sizes == tuple(padded_sizes(512))
    assert [sizes.pieces(batch) for batch in (1, 13, 17, 270, 512)] == [
        [1],
        [13],
        [20],
        [272],
        [512],
    ]
    assert sizes.pieces(700) == [512, 192]
    assert [sizes.up_to(largest) for largest in (1, 270, 2000)] == [[1], [1, 272], [1, 512]]


def test_a_tower_of_many_products_has_the_fewest_sizes() -> None:
    powers = (1, 4, 8, 16, 32, 64, 128, 256, 512)
    assert BatchSizes(50_000_000, 20.0).sizes == LARGE.sizes == powers


def test_small_towers_pad_where_large_ones_run_a_second_piece() -> None:
    assert SMALL.pieces(270) == [288]
    assert LARGE.pieces(270) == [256, 16]
    assert LARGE.pieces(1000) == SMALL.pieces(1000) == [512, 512]


@pytest.mark.parametrize(("sizes", "allowed"), [(SMALL, 0.06), (LARGE, 0.2)])
def test_padding_and_further_runs_cost_little(sizes: BatchSizes, allowed: float) -> None:
    """Against one run of just the samples, over batches as often small as large."""
    run = 23.0
    batches = [round(1.1**power) for power in range(80)]
    more = [
        sum(run + piece for piece in sizes.pieces(batch)) / (run + batch) - 1 for batch in batches
    ]
    assert sum(more) / len(more) < allowed
