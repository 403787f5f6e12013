import pytest

from serving.metrics.batch_counter import SIZES, ExecutedBatches
from serving.metrics.cells import MetricCells
from sharded_infer.towers.batch_sizes import padded_sizes


def count(batches: ExecutedBatches, samples: int, requests: int = 1) -> None:
    """Counts a batch: 1 s of decode and 5 of encode a request, 7 of the batch itself."""
    batches.count(samples, 1.0 * requests, 7.0, 5.0 * requests)


def batches_of(batches: ExecutedBatches) -> dict[int, int]:
    return {one.size: one.infer.count for one in batches.totals()}


def seconds_of(batches: ExecutedBatches) -> list[tuple[float, float, float]]:
    return [
        (one.decode.nanoseconds / 1e9, one.infer.nanoseconds / 1e9, one.encode.nanoseconds / 1e9)
        for one in batches.totals()
    ]


@pytest.fixture
def batches() -> ExecutedBatches:
    return ExecutedBatches(MetricCells(1))


def test_a_batch_counts_at_the_size_that_it_was_padded_to(batches: ExecutedBatches) -> None:
    for samples in (1, 5, 5, 17, 19, 20, 21):
        count(batches, samples)
    assert batches_of(batches) == {1: 1, 5: 2, 20: 3, 24: 1}
    assert seconds_of(batches) == [(n, 7.0 * n, 5.0 * n) for n in (1, 2, 3, 1)]


def test_a_version_may_run_at_sizes_of_its_own(batches: ExecutedBatches) -> None:
    count(batches, 17)
    batches.run_at(lambda samples: 32)
    for samples in (17, 20):
        count(batches, samples)
    assert batches_of(batches) == {20: 1, 32: 2}


def test_requests_of_one_batch_are_one_batch(batches: ExecutedBatches) -> None:
    count(batches, 9, requests=3)
    assert batches_of(batches) == {9: 1}
    # Its lookups and its tower ran once; its requests were read and answered one by one.
    assert seconds_of(batches) == [(3.0, 7.0, 15.0)]


def test_all_sizes_up_to_1024_have_a_place_and_those_for_which_there_is_none_are_left_out(
    batches: ExecutedBatches,
) -> None:
    sizes = padded_sizes(2**16)
    assert len(padded_sizes(1024)) <= SIZES
    for size in sizes:
        count(batches, size)
        count(batches, size)
    assert batches_of(batches) == dict.fromkeys(sizes[:SIZES], 2)
    count(batches, sizes[3])
    assert batches_of(batches)[sizes[3]] == 3


def test_each_process_has_places_of_its_own_and_they_add_up() -> None:
    cells = MetricCells(2)
    batches = ExecutedBatches(cells)
    for worker, sizes in ((0, (5, 7, 5)), (1, (7, 5, 7, 9)), (0, (7, 9))):
        cells.use(worker)
        for size in sizes:
            count(batches, size)
    assert batches_of(batches) == {5: 3, 7: 4, 9: 2}


def test_a_version_that_takes_anothers_place_begins_at_zero() -> None:
    cells = MetricCells(1)
    batches = ExecutedBatches(cells)
    cells.use(0)
    count(batches, 5)
    count(batches, 7)
    cells.clear(0, (SIZES + 1) * 5)
    assert batches.totals() == ()
    count(batches, 7)
    assert batches_of(batches) == {7: 1}
