"""Lookups in a table larger than memory, by exponents of Zipf's law.

The table lies in a file. Of the memory that it may take, places of ordered rows take their part.
Ids are drawn anew for each batch; a batch is read by a gather of its rows, on some threads, each of
which waits for its own page faults. Dropping pages is not counted.
"""

import os
import resource
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.typing import NDArray

from kernels.backends.native import gather_rows
from kernels.ids.row_places import PLACE_BYTES
from kernels.row_format import RowFormat
from serving.bench.tiers.limited_pages import LimitedPages
from serving.bench.tiers.random_reads import random_reads
from serving.bench.workloads.drawn_ids import scattered, zipf_ranks
from sharded_infer.errors import InputError
from sharded_infer.planning.memory_budget import page_hit_rates
from sharded_infer.planning.plan import StoredTable
from sharded_infer.planning.table_use import TableUse
from sharded_infer.progress import Progress
from sharded_infer.specs.feature_statistics import FeatureStatistics, share_of_hottest

DIM, ROW_BYTES = 128, 132  # of int8 rows
IDS_OF_A_BATCH = 2**14
_WRITTEN_BYTES = 64 * 2**20
_PAST = 2**25  # ids that were looked up before: more pages than there is room for

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PageRates:
    """Of one layout of the table's file, with the page cache as the only cache.

    Attributes:
        hit_rate: share of the ids whose pages were in memory.
        rows_per_second: looked up.
        reads_per_second: pages that were read meanwhile.
    """

    hit_rate: float
    rows_per_second: float
    reads_per_second: float


@dataclass(frozen=True, slots=True)
class ExponentRates:
    """Of one exponent and number of threads.

    Attributes:
        exponent: of Zipf's law.
        threads: that look up at once, and reads of `fio_reads`.
        ideal_hit_rate: with the rows that are used most in all the memory.
        planned_hit_rate: what `plan --memory-budget` foresees for ordered rows, beside the places.
        mapped: rows in any order.
        ordered: rows by frequency, and a place for each id in memory.
        fio_reads: direct reads of 4 KiB a second, with as many in progress; None: without fio.
    """

    exponent: float
    threads: int
    ideal_hit_rate: float
    planned_hit_rate: float
    mapped: PageRates
    ordered: PageRates
    fio_reads: float | None

    @property
    def over_mapped(self) -> float:
        """Rows a second of ordered files over those of files in any order."""
        return self.ordered.rows_per_second / self.mapped.rows_per_second

    @property
    def of_fio(self) -> float | None:
        """Reads a second for ordered files over those of fio."""
        return None if self.fio_reads is None else self.ordered.reads_per_second / self.fio_reads


def measure_tiers(
    gigabytes: float,
    memory_gigabytes: float,
    progress: Progress,
    *,
    exponents: Iterable[float],
    threads: Iterable[int],
    seconds: float,
    folder: Path | None = None,
) -> list[ExponentRates]:
    """Writes a table and measures it.

    Args:
        gigabytes: GiB of the table.
        memory_gigabytes: GiB that its pages and places may take.
        seconds: of each measurement, counted while it looks up.
        folder: where the table is written; None: the folder of temporary files.

    Raises:
        InputError: fio fails, nothing was compiled, or the memory holds places alone.
    """
    torch.set_num_threads(1)
    rows = int(gigabytes * 2**30) // ROW_BYTES
    room = int(memory_gigabytes * 2**30)
    if room <= rows * PLACE_BYTES:
        raise InputError(
            f"--memory: expected more than the places of {rows:,} rows take, "
            f"{rows * PLACE_BYTES / 2**30:.3g} GiB, got {memory_gigabytes:g} GiB"
        )
    ids_by_use = scattered(np.arange(rows), rows)
    places = np.empty(rows, np.uint32)
    places[ids_by_use] = np.arange(rows, dtype=np.uint32)
    del ids_by_use
    found: dict[tuple[float, int], dict[str, PageRates]] = {}
    counts, wanted = list(threads), list(exponents)
    with TemporaryDirectory(prefix="sharded-infer-bench-", dir=folder) as made:
        path = Path(made) / "table"
        _write(path, rows * ROW_BYTES, progress)
        fio = {count: random_reads(path, count, max(1, round(seconds))) for count in counts}
        steps = [(exponent, kind) for exponent in wanted for kind in ("mapped", "ordered")]
        for done, (exponent, kind) in enumerate(steps):
            progress("looking up", done, len(steps))
            used = places if kind == "ordered" else None
            pages = LimitedPages(path, ROW_BYTES, room - (0 if used is None else places.nbytes))
            generator = np.random.default_rng(1)
            past = _ids(generator, exponent, rows, _PAST)
            pages.fill(past if used is None else used[past].astype(np.int64))
            for count in counts:

                def draw(generator: np.random.Generator = generator, s: float = exponent) -> Ids:
                    return _ids(generator, s, rows, IDS_OF_A_BATCH)

                rates = _rates(pages, draw, used, count, seconds)
                found.setdefault((exponent, count), {})[kind] = rates
        progress("looking up", len(steps), len(steps))
    return [
        ExponentRates(
            exponent,
            count,
            share_of_hottest(exponent, rows, room // ROW_BYTES),
            _planned(exponent, rows, room - places.nbytes),
            found[exponent, count]["mapped"],
            found[exponent, count]["ordered"],
            fio[count],
        )
        for exponent in wanted
        for count in counts
    ]


def _ids(generator: np.random.Generator, exponent: float, rows: int, count: int) -> Ids:
    return scattered(zipf_ranks(generator, exponent, rows, count), rows)


def _planned(exponent: float, rows: int, room: int) -> float:
    table = StoredTable("table", rows, DIM, RowFormat.INT8)
    [rate] = page_hit_rates([TableUse(table, (FeatureStatistics(zipf=exponent),))], room)
    return rate


def _rates(
    pages: LimitedPages,
    draw: Callable[[], Ids],
    places: NDArray[np.uint32] | None,
    threads: int,
    seconds: float,
) -> PageRates:
    spent, looked_up, misses, reads = 0.0, 0, 0, 0
    with ThreadPoolExecutor(threads) as readers:
        while spent < seconds:
            ids = draw()
            rows = ids if places is None else places[ids].astype(np.int64)
            misses += pages.missing(rows)
            before = _page_reads()
            started = time.perf_counter()
            if places is not None:
                # As requests do, once more within the time.
                rows = places[ids].astype(np.int64)
            parts = torch.from_numpy(rows).chunk(threads)
            list(readers.map(lambda part: gather_rows(pages.rows, part), parts))
            spent += time.perf_counter() - started
            reads += _page_reads() - before
            looked_up += len(ids)
            pages.drop(rows)
    return PageRates(1 - misses / looked_up, looked_up / spent, reads / spent)


def _page_reads() -> int:
    """Pages that this process has read from disks so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


def _write(path: Path, size: int, progress: Progress) -> None:
    """Writes random bytes, which are not in memory then."""
    generator = np.random.default_rng(0)
    block = generator.integers(0, 256, _WRITTEN_BYTES, dtype=np.uint8)
    with path.open("wb", buffering=0) as file:
        for first in range(0, size, _WRITTEN_BYTES):
            progress("writing the table", first, size)
            # No two blocks are alike, for disks that store those once.
            block[::4096] = generator.integers(0, 256, len(block[::4096]), dtype=np.uint8)
            file.write(block[: size - first].data)
            os.fdatasync(file.fileno())
            os.posix_fadvise(file.fileno(), first, _WRITTEN_BYTES, os.POSIX_FADV_DONTNEED)
    progress("writing the table", size, size)
