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
def test_a_larger_batch_is_not_padded_to_less(batch: int) -> None:
    assert padded_size(batch) <= padded_size(batch + 1)


def test_the_steps_grow_with_the_size() -> None:
    wanted = {17: 20, 20: 20, 64: 64, 65: 72, 256: 256, 257: 272, 1024: 1024, 1025: 1088}
    assert {batch: padded_size(batch) for batch in wanted} == wanted


@given(st.integers(1, 5000))
def test_all_sizes_of_smaller_batches_are_listed_once_in_order(largest: int) -> None:
    sizes = padded_sizes(largest)
    assert sizes == sorted({padded_size(batch) for batch in range(1, largest + 1)})


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


def test_small_towers_pad_where_large_ones_run_a_second_piece() -> None:
    assert SMALL.pieces(270) == [288]
    assert LARGE.pieces(270) == [256, 16]
    assert LARGE.pieces(1000) == SMALL.pieces(1000) == [512, 512]
