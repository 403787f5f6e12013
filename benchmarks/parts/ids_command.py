"""Measures the index of raw ids."""

import os
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from benchmarks.parts.ids import measure_ids
from kernels.machine import machine
from serving.commands.console import OUT, check_target, write_json
from serving.commands.options.json_option import JsonFileOption
from serving.commands.progress_bars import progress_bars


def ids_command(
    entries: Annotated[
        int, typer.Option(min=16, max=2_000_000_000, help="Ids that the index knows.")
    ] = 100_000_000,
    seconds: Annotated[float, typer.Option(min=0.01, help="Seconds of calls.")] = 10.0,
    json_file: JsonFileOption = None,
) -> None:
    """Measure the index of raw ids beside a gather, NumPy's searchsorted and TorchRec's MPZCH.

    Writes the index as publishing does, copies it to 2 MiB pages, and asks for known and unknown
    random ids on one thread. The gather copies one cache line of the index for each id. All know as
    many ids. Takes two minutes, 9 GB of memory and 3 GB of disk.
    """
    check_target(json_file)
    with progress_bars() as progress:
        measured = measure_ids(entries, progress, seconds=seconds)
    table = Table(box=None, padding=(0, 1, 0, 0))
    table.add_column("million ids a second")
    table.add_column("known", justify="right")
    table.add_column("unknown", justify="right")
    for name, known, unknown in (
        ("ours", measured.known, measured.unknown),
        ("gather of cache lines", measured.gather, None),
        ("NumPy's searchsorted", measured.searchsorted, None),
        ("TorchRec's MPZCH", measured.torchrec, measured.torchrec_unknown),
    ):
        table.add_row(name, _millions(known), _millions(unknown))
    OUT.print(table)
    OUT.print(
        f"{entries:,} ids, {measured.index_bytes / entries:.1f} bytes each; an unknown id takes "
        f"{measured.known / measured.unknown:.2f} times what a known one takes; "
        f"{measured.known / measured.gather:.2f} of the gather\n"
        f"written in {measured.build_seconds:.1f} s and {measured.build_bytes / 1e6:.0f} MB of "
        f"memory\n{os.cpu_count()} CPU cores, {machine().class_text}",
        highlight=False,
        soft_wrap=True,
    )
    fields = {
        "entries": entries,
        "ids_per_second": measured.known,
        "unknown_over_known": measured.known / measured.unknown,
        "gather_limit_fraction": measured.known / measured.gather,
        "measurement": asdict(measured),
    }
    write_json(json_file, fields)


def _millions(rate: float | None) -> str:
    return "-" if rate is None else f"{rate / 1e6:.2f}"
