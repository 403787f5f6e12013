"""Lookups in a table larger than memory, by exponents of Zipf's law.

Batches are looked up one after another, each by all threads, which share it. Making ids and
dropping pages do not count.
"""

import importlib.util
import json
import shutil
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import torch
import typer

from benchmarks.tiers.row_stores import DIM, ROW_BYTES, Ids, MappedRows, RowStore, TieredRows
from kernels.abi.tiers import QUEUE_DEPTH
from kernels.ids.row_places import RowPlaces, places_bytes, write_places
from kernels.row_format import RowFormat
from serving.bench.turns import seconds_of
from serving.bench.workloads.requests import scattered, zipf_ranks
from serving.commands.bench.report import TEXT, Report, bench_command
from serving.commands.lazy_group import load_by_name
from sharded_infer.errors import InputError
from sharded_infer.planning.disk_calibration import write_random_bytes
from sharded_infer.planning.memory_budget import divide_memory, page_hit_rates
from sharded_infer.planning.plan import StoredTable
from sharded_infer.planning.table_use import TableUse
from sharded_infer.progress import Progress
from sharded_infer.publishing.rows.row_order import order_by_use
from sharded_infer.specs.feature_statistics import FeatureStatistics, share_of_hottest

THREADS = 16
IDS_OF_A_BATCH = 2**14
_PAST = 2**25  # ids that were looked up before: more pages than there is room for
_MOST_WARMING = 240.0  # seconds
_EXPONENTS = (0.8, 1.0, 1.05)
_NAMES = {"rocksdb": "RocksDB"}
_OF_TIERS = ("hit_rate", "planned_hit_rate", "over_mapped", "of_fio")
_ROCKS = "benchmarks.tiers.rocks_rows"


@bench_command
def tiers_command(
    progress: Progress,
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
) -> Report:
    """Measure a table larger than memory, ordered and not.

    Mapped rows have the page cache as the only cache. Pages beyond the memory are dropped after
    each batch, those that were used longest ago, which needs no right to limit a process. Rows in
    tiers are pinned and cached as serve --row-memory-mib has them. Beside hit rates stand those
    that plan --memory-budget foresees. fio, where it is installed, reads the same file. Takes
    twelve minutes.
    """
    if rocksdb and importlib.util.find_spec("rocksdict") is None:
        raise InputError("--rocksdb: rocksdict is not installed: pip install rocksdict")
    torch.set_num_threads(1)
    rows = int(gigabytes * 2**30) // ROW_BYTES
    room = int(memory * 2**30)
    if room <= places_bytes(rows):
        raise InputError(
            f"--memory: expected more than the places of {rows:,} rows take, "
            f"{places_bytes(rows) / 2**30:.3g} GiB, got {memory:g} GiB"
        )
    # Ordered as `publish` does for known frequencies.
    counts = np.empty(rows)
    counts[scattered(np.arange(rows), rows)] = np.arange(rows, 0, -1)
    places = RowPlaces.open(write_places(order_by_use(counts)), rows)
    found = []
    with TemporaryDirectory(prefix="sharded-infer-bench-", dir=folder) as made:
        path = Path(made) / "table"
        with path.open("wb", buffering=0) as file:
            write_random_bytes(file.fileno(), rows * ROW_BYTES, progress)
        if rocksdb:
            load_by_name(f"{_ROCKS}:write_rocks")(Path(made), path, progress)
        for power in exponent or _EXPONENTS:
            ways = _ways(power, path, places, room, rocksdb, seconds, progress)
            # Near them in time: disks are faster at times.
            fio = _random_reads(path, max(1, round(seconds)))
            for way in ways.values():
                way["over_mapped"] = way["rows_per_second"] / ways["mapped"]["rows_per_second"]
                reads = way["reads_per_second"]
                way["of_fio"] = None if reads is None or fio is None else reads / fio
            found.append(
                {
                    "exponent": power,
                    # With the most used rows in all the memory.
                    "ideal_hit_rate": share_of_hottest(power, rows, room // ROW_BYTES),
                    "rocksdb": None,
                    **ways,
                    "fio_reads": fio,
                    **{name: ways["tiers"][name] for name in _OF_TIERS},
                }
            )
    share = ".1%"
    return Report(
        [
            ("Zipf", "g"), ("", TEXT), ("hits", share), ("planned", share), ("ideal", share),
            ("rows/s", ",.0f"), ("over mapped", ".2f"), ("reads/s", ",.0f"), ("of fio", ".2f"),
        ],
        [
            (
                one["exponent"], _NAMES.get(name, name), way["hit_rate"], way["planned_hit_rate"],
                one["ideal_hit_rate"], way["rows_per_second"], way["over_mapped"],
                way["reads_per_second"], way["of_fio"],
            )
            for one in found
            for name in ("mapped", "ordered", "tiers", "rocksdb")
            if (way := one[name]) is not None
        ],
        [],
        {"gigabytes": gigabytes, "memory_gigabytes": memory, "rates": found},
        title=f"{gigabytes:g} GiB in {memory:g} GiB of memory",
    )  # fmt: skip


def _ways(
    exponent: float,
    path: Path,
    places: RowPlaces,
    room: int,
    with_rocksdb: bool,
    seconds: float,
    progress: Progress,
) -> dict[str, dict[str, Any]]:
    """Rates of lookups by the way that rows are kept within `room` bytes.

    Mapped rows are in any order, ordered ones by use; both have only the page cache. Tiers are the
    same rows and places, pinned and cached. The places of ordered rows take a part of the room.
    """
    left = room - places_bytes(places.count)
    uses = [
        TableUse(
            StoredTable("table", places.count, DIM, RowFormat.INT8),
            (FeatureStatistics(zipf=exponent),),
        )
    ]
    [kept], [of_pages] = divide_memory(uses, left), page_hit_rates(uses, left)
    generator = np.random.default_rng(1)

    def draw(count: int) -> Ids:
        return scattered(zipf_ranks(generator, exponent, places.count, count), places.count)

    opened: dict[str, tuple[Callable[[], RowStore], float | None]] = {
        "mapped": (lambda: MappedRows(path, room, draw(_PAST)), None),
        "ordered": (lambda: MappedRows(path, left, draw(_PAST), places), of_pages),
        "tiers": (lambda: TieredRows(path, kept, places, progress), kept.hit_rate),
    }
    if with_rocksdb:
        opened["rocksdb"] = partial(load_by_name(f"{_ROCKS}:RocksRows"), path.parent, room), None
    found = {}
    for name, (store, planned) in opened.items():
        what = f"Zipf {exponent:g}, {_NAMES.get(name, name)}"
        found[name] = _rates(store(), what, draw, seconds, progress) | {"planned_hit_rate": planned}
    return found


def _random_reads(path: Path, seconds: int) -> float | None:
    """Direct random reads of 4 KiB of a file a second, like a tier's; None without fio."""
    program = shutil.which("fio")
    if program is None:
        return None
    file = ("--readonly", "--name=random", f"--filename={path}", "--output-format=json")
    words = ("--rw=randread", "--bs=4k", "--direct=1", "--ioengine=libaio", "--norandommap")
    when = (f"--iodepth={QUEUE_DEPTH}", f"--runtime={seconds}", "--time_based")
    done = subprocess.run(  # noqa: S603 - fio, on our own file
        [program, *file, *words, *when], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise InputError(f"bench tiers: fio failed: {done.stderr.strip()[-500:]}")
    return float(json.loads(done.stdout)["jobs"][0]["read"]["iops"])


def _rates(
    store: RowStore,
    what: str,
    draw: Callable[[int], Ids],
    seconds: float,
    progress: Progress,
) -> dict[str, float | None]:
    """Share of ids without a read, rows a second and reads a second, for seconds of lookups."""
    with ThreadPoolExecutor(THREADS) as readers:

        def look_up() -> float:
            ids = draw(IDS_OF_A_BATCH)
            store.begin(ids)
            parts: Sequence[Ids] = np.split(ids, THREADS)
            spent = seconds_of(lambda: list(readers.map(store.look_up, parts)))
            store.end(ids)
            return spent

        progress(f"{what}: warming", 0, 1)
        warming = 0.0
        while not store.is_warm and warming < _MOST_WARMING:
            warming += look_up()
        progress(f"{what}: looking up", 0, 1)
        before, spent, batches = store.counts(), 0.0, 0
        while spent < seconds:
            spent += look_up()
            batches += 1
    after = store.counts()
    store.close()
    hits = reads = None
    if after.hits is not None and before.hits is not None:
        hits = (after.hits - before.hits) / (after.ids - before.ids)
    if after.reads is not None and before.reads is not None:
        reads = (after.reads - before.reads) / spent
    progress(f"{what}: looking up", 1, 1)
    rate = batches * IDS_OF_A_BATCH / spent
    return {"hit_rate": hits, "rows_per_second": rate, "reads_per_second": reads}
