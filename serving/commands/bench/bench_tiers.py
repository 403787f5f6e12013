"""Measures tables larger than memory."""

import os
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from serving.bench.tiers.measurement import ExponentRates, measure_tiers
from serving.commands.console import OUT, check_target, write_json
from serving.commands.options.json_option import JsonFileOption
from serving.commands.progress_bars import progress_bars

_EXPONENTS, _THREADS = (0.8, 1.0, 1.05), (1, 16)


def bench_tiers_command(
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
    json_file: JsonFileOption = None,
) -> None:
    """Measure a table larger than memory, ordered and not.

    The page cache is the only cache. Pages beyond the memory are dropped after each batch, those
    that were used longest ago, which needs no right to limit a process. Beside the hit rate of
    ordered rows stands the one that plan --memory-budget foresees. fio, where it is installed,
    reads the same file. Takes six minutes.
    """
    check_target(json_file)
    with progress_bars() as progress:
        found = measure_tiers(
            gigabytes,
            memory,
            progress,
            exponents=exponent or _EXPONENTS,
            threads=_THREADS,
            seconds=seconds,
            folder=folder,
        )
    table = Table(title=f"{gigabytes:g} GiB in {memory:g} GiB of memory", title_justify="left")
    for heading in (
        *("Zipf", "threads", "ideal hits", "mapped hits", "rows/s"),
        *("planned hits", "ordered hits", "rows/s", "over mapped", "reads/s", "of fio"),
    ):
        table.add_column(heading, justify="right")
    for one in found:
        table.add_row(
            f"{one.exponent:g}",
            str(one.threads),
            f"{one.ideal_hit_rate:.1%}",
            f"{one.mapped.hit_rate:.1%}",
            f"{one.mapped.rows_per_second:,.0f}",
            f"{one.planned_hit_rate:.1%}",
            f"{one.ordered.hit_rate:.1%}",
            f"{one.ordered.rows_per_second:,.0f}",
            f"{one.over_mapped:.2f}",
            f"{one.ordered.reads_per_second:,.0f}",
            "-" if one.of_fio is None else f"{one.of_fio:.2f}",
        )
    OUT.print(table)
    OUT.print(f"{os.cpu_count()} CPU cores, {platform.machine()}", highlight=False)
    write_json(
        json_file,
        {"gigabytes": gigabytes, "memory_gigabytes": memory, "rates": [*map(_fields, found)]},
    )


def _fields(one: ExponentRates) -> dict[str, object]:
    return {
        **asdict(one),
        "hit_rate": one.ordered.hit_rate,
        "over_mapped": one.over_mapped,
        "of_fio": one.of_fio,
    }
