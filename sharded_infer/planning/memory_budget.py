"""Division of memory for rows: the hottest rows of each table, and their hit rates.

    cut each table's rows, the hottest first, into segments
    take segments, those first that serve the most ids for a byte, until the memory is full

Segments of one table serve fewer and fewer ids for a byte, so they are taken in order. The hit
rates are of the most used rows: an upper bound for any cache. Beside them are those of the page
cache, which keeps the most recently used pages.
"""

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sharded_infer.errors import InputError
from sharded_infer.planning.table_use import TableUse
from sharded_infer.specs.feature_statistics import FeatureStatistics, share_of_hottest

# A segment's rows, relative to those before it.
_GROWTH = 1 / 16
_PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class KeptRows:
    """The hottest rows of one table that memory holds.

    Attributes:
        hit_rate: share of the table's ids whose rows they are.
        ids: of a sample.
        page_hit_rate: the same share with the page cache alone, and all tables' rows ordered.
    """

    table: str
    rows: int
    bytes: int
    hit_rate: float
    ids: float
    page_hit_rate: float

    @property
    def reads(self) -> float:
        """Rows that a sample reads from elsewhere; each id counts."""
        return self.ids * (1 - self.hit_rate)


def divide_memory(uses: Iterable[TableUse], memory_bytes: int) -> tuple[KeptRows, ...]:
    """Divide memory over tables to minimise missing ids.

    A feature without statistics counts as evenly used; unused tables come last. `memory_bytes` are
    of stored rows, without id maps and places; InputError if negative.
    """
    if memory_bytes < 0:
        raise InputError(f"memory: expected 0 bytes and more, got {memory_bytes}")
    tables = tuple(uses)
    kept, left = [0] * len(tables), memory_bytes
    waiting: list[tuple[float, int]] = []

    def wait(number: int) -> None:
        use, first = tables[number], kept[number]
        last = _segment_end(use, first)
        if last > first:
            ids = use.pooling_factor * (hit_rate(use, last) - hit_rate(use, first))
            served = ids / ((last - first) * use.table.row_bytes)
            heapq.heappush(waiting, (-served, number))

    for number in range(len(tables)):
        wait(number)
    while waiting:
        _, number = heapq.heappop(waiting)
        row_bytes, first = tables[number].table.row_bytes, kept[number]
        taken = min(_segment_end(tables[number], first) - first, left // row_bytes)
        kept[number] += taken
        left -= taken * row_bytes
        # The rest may still hold smaller rows of other tables.
        if taken:
            wait(number)
    return tuple(
        KeptRows(
            use.table.name,
            rows,
            rows * use.table.row_bytes,
            hit_rate(use, rows),
            use.pooling_factor,
            of_pages,
        )
        for use, rows, of_pages in zip(
            tables, kept, page_hit_rates(tables, memory_bytes), strict=True
        )
    )


def page_hit_rates(uses: Sequence[TableUse], memory_bytes: int) -> list[float]:
    """Share of each table's ids that find their pages, with the page cache as the only cache.

    Rows of each table are ordered by frequency. The most recently used pages of all tables stay:
    each for as many samples T as fill the memory (H. Che, Y. Tung and Z. Wang, "Hierarchical Web
    Caching Systems", 2002):

        sum over pages(1 - exp(-uses of the page in a sample * T)) = pages of the memory
    """
    room = memory_bytes / _PAGE_BYTES
    segments = [_page_segments(use) for use in uses]
    pages = np.concatenate([counts for counts, _ in segments])
    # A row that spans two pages needs both.
    touched = [1 + (use.table.row_bytes - 1) / _PAGE_BYTES for use in uses]
    rates = [
        use.pooling_factor * touches * shares / counts
        for use, touches, (counts, shares) in zip(uses, touched, segments, strict=True)
    ]
    every = np.concatenate(rates)
    if pages[every > 0].sum() <= room:
        return [1.0] * len(uses)
    low, high = -64.0, 64.0  # of T, logarithms to base 2
    for _ in range(64):
        middle = (low + high) / 2
        held = float((pages * -np.expm1(-every * math.exp2(middle))).sum())
        low, high = (middle, high) if held < room else (low, middle)
    return [
        float((shares * (-np.expm1(-rate * math.exp2(low))) ** touches).sum())
        for rate, touches, (_, shares) in zip(rates, touched, segments, strict=True)
    ]


def hit_rate(use: TableUse, hottest: float) -> float:
    """Share of a table's ids that its `hottest` rows serve, by its features' statistics."""
    rows = use.table.rows
    if use.pooling_factor == 0:
        return hottest / rows
    served = sum(f.pooling_factor * _share(f, rows, hottest) for f in use.features)
    return served / use.pooling_factor


def _page_segments(use: TableUse) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    rows_of_page, rows = _PAGE_BYTES / use.table.row_bytes, use.table.rows
    ends, last = [0.0], 0.0
    while last < rows:
        last = min(float(rows), last + max(rows_of_page, last * _GROWTH))
        ends.append(last)
    served = np.array([hit_rate(use, end) for end in ends])
    return np.diff(ends) / rows_of_page, np.diff(served)


def _segment_end(use: TableUse, first: int) -> int:
    return min(use.table.rows, first + max(1, int(first * _GROWTH)))


def _share(feature: FeatureStatistics, rows: int, hottest: float) -> float:
    """By the power law if known; else by the histogram, even within each of its ranges."""
    if feature.zipf is not None or not feature.histogram:
        return share_of_hottest(feature.zipf or 0.0, rows, hottest)
    total = sum(feature.histogram)
    if not total:
        return hottest / rows
    densest = sorted(feature.histogram, reverse=True)
    place = hottest * len(densest) / rows
    whole = int(place)
    part = densest[whole] * (place - whole) if whole < len(densest) else 0.0
    return min(1.0, (sum(densest[:whole]) + part) / total)
