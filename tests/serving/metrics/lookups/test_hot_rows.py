import numpy as np
import pytest

from serving.metrics.lookups.hot_rows import HotRows
from serving.process.process_sampler import first_rows_of
from sharded_infer.inputs.model_input import JaggedBatch, ModelInput


def asked(ids: list[list[int]]) -> ModelInput:
    lengths = np.array([[len(bag)] for bag in ids])
    values = np.array([one for bag in ids for one in bag], np.int64)
    return ModelInput(1, (JaggedBatch(tuple(range(len(ids))), values, lengths),), ())


def test_rows_of_features_that_share_a_table_are_the_same_and_other_tables_are_others() -> None:
    first_rows = first_rows_of([("user", 100), ("item", 50), ("item", 50), ("page", 10)])
    assert first_rows == [0, 100, 100, 150]
    sample = HotRows()
    # Row 7 of the items five times, row 7 of the users once, and two others.
    sample.take(asked([[7], [7, 7, 7], [7, 7], [1, 2]]))
    assert sample.hot_share(first_rows) == 5 / 8


def test_the_hottest_hundredth_of_the_rows_is_meant() -> None:
    sample = HotRows()
    ids = [*range(500), *[0] * 249, *[1] * 249]
    for one in ids:
        sample.take(asked([[one]]))
    sample.clear()
    sample.take(asked([ids]))
    # Five of 500 rows: two of 250 accesses, three of one.
    assert sample.hot_share([0]) == pytest.approx((250 + 250 + 3) / len(ids))


def test_it_slides_and_what_it_keeps_is_bounded() -> None:
    sample = HotRows()
    for _ in range(100):
        sample.take(asked([[3]]))
    assert sample.hot_share([0]) == 1.0
    generator = np.random.default_rng(2)
    for _ in range(100):
        sample.take(asked([generator.integers(0, 10**6, 50_000).tolist()]))
    assert sum(len(ids) for ids, *_ in sample._taken) <= 32 * 8192
    # No row is hot among as many as there are accesses.
    assert sample.hot_share([0]) < 0.03


def test_ids_of_a_large_batch_are_told_to_be_of_their_features() -> None:
    sample = HotRows()
    sample.take(asked([[5] * 30_000, [5] * 10_000]))
    assert sample.hot_share([0, 100]) == pytest.approx(0.75, abs=0.01)
