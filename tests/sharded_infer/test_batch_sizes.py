"""The sizes that batches are padded to: few, close above, and known beforehand."""

from hypothesis import given
from hypothesis import strategies as st

from sharded_infer.batch_sizes import padded_size, padded_sizes


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
