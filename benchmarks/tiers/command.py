"""Measures tables larger than memory."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from benchmarks.tiers.measurement import ExponentRates, LookupRates, measure_tiers
from benchmarks.tiers.rocks_rows import has_rocksdb
from kernels.machine import machine
from serving.commands.console import OUT, check_target, write_json
from serving.commands.options.json_option import JsonFileOption
from serving.commands.progress_bars import progress_bars
from sharded_infer.errors import InputError

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
    table = Table(title=f"{gigabytes:g} GiB in {memory:g} GiB of memory", title_justify="left")
    for heading in ("Zipf", "", "hits", "planned", "ideal", "rows/s", "over mapped", "reads/s"):
        table.add_column(heading, justify="right" if heading else "left")
    table.add_column("of fio", justify="right")
    for one in found:
        for name, rates in _ways(one).items():
            over = rates.rows_per_second / one.mapped.rows_per_second
            reads = rates.reads_per_second
            table.add_row(
                *(f"{one.exponent:g}", name, _share(rates.hit_rate)),
                *(_share(rates.planned_hit_rate), _share(one.ideal_hit_rate)),
                *(f"{rates.rows_per_second:,.0f}", f"{over:.2f}"),
                "-" if reads is None else f"{reads:,.0f}",
                "-" if reads is None or one.fio_reads is None else f"{reads / one.fio_reads:.2f}",
            )
    OUT.print(table)
    OUT.print(f"{os.cpu_count()} CPU cores, {machine().class_text}", highlight=False)
    write_json(
        json_file,
        {"gigabytes": gigabytes, "memory_gigabytes": memory, "rates": [*map(_fields, found)]},
    )


def _ways(one: ExponentRates) -> dict[str, LookupRates]:
    ways = {"mapped": one.mapped, "ordered": one.ordered, "tiers": one.tiers}
    return ways if one.rocksdb is None else {**ways, "RocksDB": one.rocksdb}


def _share(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.1%}"


def _fields(one: ExponentRates) -> dict[str, object]:
    return {
        **asdict(one),
        "hit_rate": one.tiers.hit_rate,
        "planned_hit_rate": one.tiers.planned_hit_rate,
        "over_mapped": one.over_mapped,
        "of_fio": one.of_fio,
    }
