import itertools
from collections import OrderedDict

import numpy as np
import pytest

from kernels.row_format import RowFormat
from sharded_infer.errors import InputError
from sharded_infer.planning.memory_budget import divide_memory, hit_rate, page_hit_rates
from sharded_infer.planning.plan import StoredTable
from sharded_infer.planning.table_use import TableUse
from sharded_infer.specs.feature_statistics import FeatureStatistics


def used(name: str, rows: int, dim: int, *features: FeatureStatistics) -> TableUse:
    return TableUse(StoredTable(name, rows, dim, RowFormat.INT8), features)


def skewed(ids: float, zipf: float | None, *histogram: float) -> FeatureStatistics:
    return FeatureStatistics(ids, zipf, histogram)


SKEWED = used("skewed", 1000, 124, skewed(4, 1.05))
FLAT = used("flat", 1000, 28, skewed(2, 0.6))
BINNED = used("binned", 400, 28, skewed(1, None, 1, 6, 2, 1))


@pytest.mark.parametrize("exponent", [0.8, 1.0, 1.05])
def test_a_hit_rate_is_that_of_the_rows_that_are_drawn_most(exponent: float) -> None:
    use = used("item", 100_000, 64, skewed(1, exponent))
    frequencies = np.arange(1, 100_001) ** -exponent
    for hottest in (100, 5_000, 25_000):
        ideal = frequencies[:hottest].sum() / frequencies.sum()
        assert hit_rate(use, hottest) == pytest.approx(ideal, abs=0.03)


def test_a_histogram_counts_from_its_densest_range() -> None:
    assert hit_rate(BINNED, 100) == pytest.approx(0.6)
    assert hit_rate(BINNED, 150) == pytest.approx(0.7)
    assert hit_rate(BINNED, 400) == pytest.approx(1.0)
    assert hit_rate(used("even", 400, 28, skewed(1, None)), 100) == pytest.approx(0.25)
    both = used("both", 400, 28, skewed(3, None, 1, 6, 2, 1), skewed(1, 0.0))
    assert hit_rate(both, 100) == pytest.approx(0.75 * 0.6 + 0.25 * 0.25)


@pytest.mark.parametrize("memory", [0, 100, 5_000, 40_000, 100_000])
def test_no_other_division_misses_fewer_ids(memory: int) -> None:
    uses = (SKEWED, FLAT, BINNED)
    kept = divide_memory(uses, memory)
    assert sum(one.bytes for one in kept) <= memory
    missed = sum(one.reads for one in kept)
    shares = np.linspace(0, 1, 41)
    for one, other in itertools.product(shares, shares):
        if one + other > 1:
            continue
        parts = (one, other, 1 - one - other)
        rows = [
            min(use.table.rows, int(memory * part) // use.table.row_bytes)
            for use, part in zip(uses, parts, strict=True)
        ]
        ids = sum(
            use.pooling_factor * (1 - hit_rate(use, held))
            for use, held in zip(uses, rows, strict=True)
        )
        # A segment is taken whole: up to a sixteenth of the rows before it.
        assert missed <= ids + 0.03


def test_memory_for_all_rows_holds_them() -> None:
    uses = (SKEWED, FLAT, BINNED, used("unused", 10, 28, skewed(0, None)))
    kept = divide_memory(uses, 10**9)
    assert [one.rows for one in kept] == [1000, 1000, 400, 10]
    assert all(one.hit_rate == pytest.approx(1) and one.reads < 1e-9 for one in kept)
    assert all(one.rows == 0 and one.hit_rate == 0 for one in divide_memory(uses, 0))
    with pytest.raises(InputError, match="expected 0 bytes and more, got -1"):
        divide_memory(uses, -1)


@pytest.mark.parametrize("memory", [100_000, 400_000, 1_200_000])
def test_page_hit_rates_are_those_of_pages_that_leave_when_least_recently_used(memory: int) -> None:
    uses = (used("skewed", 20_000, 128, skewed(3, 1.0)), used("flat", 8_000, 60, skewed(1, 0.5)))
    generator, cached = np.random.default_rng(0), OrderedDict[tuple[int, int], None]()
    drawn = []
    for use in uses:
        frequencies = np.arange(1, use.table.rows + 1) ** -(use.features[0].zipf or 0.0)
        count = round(50_000 * use.pooling_factor)
        rows = generator.choice(use.table.rows, count, p=frequencies / frequencies.sum())
        drawn.append(rows.reshape(50_000, -1))
    hits = np.zeros((50_000, 2))
    for sample, of_tables in enumerate(zip(*drawn, strict=True)):
        for table, rows in enumerate(of_tables):
            row_bytes = uses[table].table.row_bytes
            for row in rows.tolist():
                pages = {row * row_bytes // 4096, ((row + 1) * row_bytes - 1) // 4096}
                hits[sample, table] += all((table, page) in cached for page in pages)
                for page in pages:
                    cached[table, page] = None
                    cached.move_to_end((table, page))
                while len(cached) > memory // 4096:
                    cached.popitem(last=False)
    measured = hits[10_000:].mean(0) / [use.pooling_factor for use in uses]
    assert page_hit_rates(uses, memory) == pytest.approx(measured.tolist(), abs=0.03)
    kept = divide_memory(uses, memory)
    assert [one.page_hit_rate for one in kept] == page_hit_rates(uses, memory)
    # Pages have some rows that are used less: no table of one kind of rows gains by them.
    assert sum(part.ids * part.page_hit_rate for part in kept) < sum(
        one.ids * one.hit_rate for one in kept
    )


def test_pages_for_which_there_is_room_stay() -> None:
    unused = used("unused", 10_000, 28, skewed(0, None))
    assert page_hit_rates((SKEWED, unused), 200_000) == [1, 1]
    assert page_hit_rates((SKEWED, unused), 0) == pytest.approx([0, 0])
    # Half of the rows serve nothing, and are in no page that is asked for.
    halved = used("halved", 100_000, 60, skewed(2, None, *(0.1,) * 7, *(0,) * 7))
    [some], [all_of_them] = (page_hit_rates((halved,), memory) for memory in (10**6, 4 * 10**6))
    assert 0.2 < some < 0.4 and all_of_them == 1
