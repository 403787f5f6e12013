"""Lookups in a table larger than memory, by exponents of Zipf's law.

The table lies in a file. Places of ordered rows take a part of its memory. Batches are looked up
one after another, each by all threads, which share it. Making ids and dropping pages do not count.
"""

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import numpy as np
import torch
import typer

from benchmarks.tiers.rocks_rows import RocksRows, has_rocksdb, write_rocks
from benchmarks.tiers.row_stores import (
    DIM,
    ROW_BYTES,
    Ids,
    MappedRows,
    RowStore,
    TieredRows,
)
from kernels.ids.row_places import RowPlaces, places_bytes, write_places
from kernels.row_format import RowFormat
from kernels.tiers.row_tier import QUEUE_DEPTH
from serving.bench.workloads.drawn_ids import scattered, zipf_ranks
from serving.commands.bench.report import TEXT, print_notes, print_table
from serving.commands.console import check_target, write_json
from serving.commands.options.json_option import JsonFileOption
from serving.commands.progress_bars import progress_bars
from sharded_infer.errors import InputError
from sharded_infer.planning.disk_calibration import write_random_bytes
from sharded_infer.planning.memory_budget import KeptRows, divide_memory, page_hit_rates
from sharded_infer.planning.plan import StoredTable
from sharded_infer.planning.table_use import TableUse
from sharded_infer.progress import Progress
from sharded_infer.publishing.rows.row_order import order_by_use
from sharded_infer.specs.feature_statistics import FeatureStatistics, share_of_hottest

THREADS = 16
IDS_OF_A_BATCH = 2**14
_PAST = 2**25  # ids that were looked up before: more pages than there is room for
_MOST_WARMING = 240.0  # seconds


@dataclass(frozen=True, slots=True)
class LookupRates:
    """Hit rate (ids without a read), reads from the disk and the planner's prediction, if known."""

    hit_rate: float | None
    rows_per_second: float
    reads_per_second: float | None
    planned_hit_rate: float | None = None


@dataclass(frozen=True, slots=True)
class ExponentRates:
    """Rates at one exponent of Zipf's law.

    Attributes:
        ideal_hit_rate: with the most used rows in all the memory.
        mapped: rows in any order, and only the page cache.
        ordered: rows by use and a place for each id in memory, and only the page cache.
        tiers: the same rows and places, pinned and cached by `serve --row-memory-mib`.
        rocksdb: RocksDB with a block cache of that memory.
        fio_reads: direct reads of 4 KiB a second, as many at once as tiers have; None without fio.
    """

    exponent: float
    ideal_hit_rate: float
    mapped: LookupRates
    ordered: LookupRates
    tiers: LookupRates
    rocksdb: LookupRates | None
    fio_reads: float | None

    def ways(self) -> dict[str, LookupRates]:
        """All measured ways, by name."""
        ways = {"mapped": self.mapped, "ordered": self.ordered, "tiers": self.tiers}
        return ways if self.rocksdb is None else {**ways, "RocksDB": self.rocksdb}

    def over_fio(self, way: LookupRates) -> float | None:
        """Reads a second of a way over those of fio."""
        reads = way.reads_per_second
        return None if self.fio_reads is None or reads is None else reads / self.fio_reads


_EXPONENTS = (0.8, 1.0, 1.05)


def tiers_command(
    gigabytes: Annotated[float, typer.Option(min=0.01, max=64, help="GiB of the table.")] = 8.0,
    memory: Annotated[float, typer.Option(min=0.001, help="GiB that it may take.")] = 2.0,
    exponent: Annotated[
        list[float] | None,
        typer.Option(min=0.1, max=3, help="Of Zipf's law; may be repeated. All: 0.8, 1, 1.05."),
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="Seconds of each measurement.")] = 6.0,
    folder: Annotated[
        Path | None, typer.Option(help="Where the table is written, on the disk to measure.")
    ] = None,
    rocksdb: Annotated[
        bool,
        typer.Option(
            "--rocksdb", help="RocksDB too, if rocksdict is installed. Takes twice the disk."
        ),
    ] = False,
    json_file: JsonFileOption = None,
) -> None:
    """Measure a table larger than memory, ordered and not.

    Mapped rows have the page cache as the only cache. Pages beyond the memory are dropped after
    each batch, those that were used longest ago, which needs no right to limit a process. Rows in
    tiers are pinned and cached as serve --row-memory-mib has them. Beside hit rates stand those
    that plan --memory-budget foresees. fio, where it is installed, reads the same file. Takes
    twelve minutes.
    """
    check_target(json_file)
    if rocksdb and not has_rocksdb():
        raise InputError("--rocksdb: rocksdict is not installed: pip install rocksdict")
    with progress_bars() as progress:
        found = measure_tiers(
            gigabytes,
            memory,
            progress,
            exponents=exponent or _EXPONENTS,
            seconds=seconds,
            folder=folder,
            with_rocksdb=rocksdb,
        )
    share = ".1%"
    print_table(
        [
            ("Zipf", "g"), ("", TEXT), ("hits", share), ("planned", share), ("ideal", share),
            ("rows/s", ",.0f"), ("over mapped", ".2f"), ("reads/s", ",.0f"), ("of fio", ".2f"),
        ],
        (
            (
                one.exponent, name, way.hit_rate, way.planned_hit_rate, one.ideal_hit_rate,
                way.rows_per_second, way.rows_per_second / one.mapped.rows_per_second,
                way.reads_per_second, one.over_fio(way),
            )
            for one in found
            for name, way in one.ways().items()
        ),
        title=f"{gigabytes:g} GiB in {memory:g} GiB of memory",
    )  # fmt: skip
    print_notes()
    rates = [
        {
            **asdict(one),
            "hit_rate": one.tiers.hit_rate,
            "planned_hit_rate": one.tiers.planned_hit_rate,
            "over_mapped": one.tiers.rows_per_second / one.mapped.rows_per_second,
            "of_fio": one.over_fio(one.tiers),
        }
        for one in found
    ]
    fields = {"gigabytes": gigabytes, "memory_gigabytes": memory, "rates": rates}
    write_json(json_file, fields)


def random_reads(path: Path, depth: int, seconds: int) -> float | None:
    """Direct random reads of 4 KiB of a file a second, `depth` at once; None without fio."""
    program = shutil.which("fio")
    if program is None:
        return None
    options = {
        "name": "random",
        "filename": path,
        "rw": "randread",
        "bs": "4k",
        "direct": 1,
        "ioengine": "libaio",
        "iodepth": depth,
        "runtime": seconds,
        "output-format": "json",
    }
    arguments = [f"--{name}={value}" for name, value in options.items()]
    done = subprocess.run(  # noqa: S603 - fio, on our own file
        [program, "--readonly", "--time_based", "--norandommap", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise InputError(f"bench tiers: fio failed: {done.stderr.strip()[-500:]}")
    return float(json.loads(done.stdout)["jobs"][0]["read"]["iops"])


def measure_tiers(
    gigabytes: float,
    memory_gigabytes: float,
    progress: Progress,
    *,
    exponents: Iterable[float],
    seconds: float,
    folder: Path | None = None,
    with_rocksdb: bool = False,
) -> list[ExponentRates]:
    """Write a table of GiB to a folder and measure it, counting seconds during lookups.

    Memory is for its rows, pages or blocks, and the places of ids.
    """
    torch.set_num_threads(1)
    rows = int(gigabytes * 2**30) // ROW_BYTES
    room = int(memory_gigabytes * 2**30)
    left = room - places_bytes(rows)
    if left <= 0:
        raise InputError(
            f"--memory: expected more than the places of {rows:,} rows take, "
            f"{places_bytes(rows) / 2**30:.3g} GiB, got {memory_gigabytes:g} GiB"
        )
    places = _places(rows)
    with TemporaryDirectory(prefix="sharded-infer-bench-", dir=folder) as made:
        path = Path(made) / "table"
        with path.open("wb", buffering=0) as file:
            write_random_bytes(file.fileno(), rows * ROW_BYTES, progress)
        if with_rocksdb:
            write_rocks(Path(made), path, progress)
        found = []
        for exponent in exponents:
            draw = partial(_ids, np.random.default_rng(1), exponent, rows)
            kept, of_pages = _planned(exponent, rows, left)
            rates = partial(_rates, draw=draw, seconds=seconds, progress=progress)
            mapped = rates(MappedRows(path, room, draw(_PAST)), f"Zipf {exponent:g}, mapped")
            store: RowStore = MappedRows(path, left, draw(_PAST), places)
            ordered = rates(store, f"Zipf {exponent:g}, ordered", planned=of_pages)
            store = TieredRows(path, kept, places, progress)
            tiers = rates(store, f"Zipf {exponent:g}, tiers", planned=kept.hit_rate)
            del store
            # Near them in time: disks are faster at times.
            fio = random_reads(path, QUEUE_DEPTH, max(1, round(seconds)))
            rocksdb = None
            if with_rocksdb:
                with closing(RocksRows(Path(made), room)) as peer:
                    rocksdb = rates(peer, f"Zipf {exponent:g}, RocksDB")
            ideal = share_of_hottest(exponent, rows, room // ROW_BYTES)
            found.append(ExponentRates(exponent, ideal, mapped, ordered, tiers, rocksdb, fio))
    return found


def _places(rows: int) -> RowPlaces:
    """Order rows as `publish` does for known frequencies."""
    counts = np.empty(rows)
    counts[scattered(np.arange(rows), rows)] = np.arange(rows, 0, -1)
    return RowPlaces.open(write_places(order_by_use(counts)), rows)


def _ids(generator: np.random.Generator, exponent: float, rows: int, count: int) -> Ids:
    return scattered(zipf_ranks(generator, exponent, rows, count), rows)


def _planned(exponent: float, rows: int, room: int) -> tuple[KeptRows, float]:
    """Division of tiers, and the hit rate of ordered rows with only the page cache."""
    table = StoredTable("table", rows, DIM, RowFormat.INT8)
    uses = [TableUse(table, (FeatureStatistics(zipf=exponent),))]
    [kept], [of_pages] = divide_memory(uses, room), page_hit_rates(uses, room)
    return kept, of_pages


def _rates(
    store: RowStore,
    what: str,
    *,
    draw: Callable[[int], Ids],
    seconds: float,
    progress: Progress,
    planned: float | None = None,
) -> LookupRates:
    with ThreadPoolExecutor(THREADS) as readers:

        def look_up() -> float:
            ids = draw(IDS_OF_A_BATCH)
            store.begin(ids)
            parts: Sequence[Ids] = np.split(ids, THREADS)
            started = time.perf_counter()
            list(readers.map(store.look_up, parts))
            spent = time.perf_counter() - started
            store.end(ids)
            return spent

        progress(f"{what}: warming", 0, 1)
        warming = 0.0
        while not store.is_warm and warming < _MOST_WARMING:
            warming += look_up()
        progress(f"{what}: looking up", 0, 1)
        before, spent, batches = store.found(), 0.0, 0
        while spent < seconds:
            spent += look_up()
            batches += 1
    after = store.found()
    hits = reads = None
    if after.hits is not None and before.hits is not None:
        hits = (after.hits - before.hits) / (after.ids - before.ids)
    if after.reads is not None and before.reads is not None:
        reads = (after.reads - before.reads) / spent
    progress(f"{what}: looking up", 1, 1)
    return LookupRates(hits, batches * IDS_OF_A_BATCH / spent, reads, planned)
