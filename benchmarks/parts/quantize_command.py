"""Measures quantization."""

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from benchmarks.parts.quantize import FORMATS, measure_quantize
from kernels.machine import machine
from serving.commands.console import OUT, check_target, write_json
from serving.commands.options.json_option import JsonFileOption
from serving.commands.progress_bars import progress_bars
from sharded_infer.byte_sizes import size_text


def quantize_command(
    gigabytes: Annotated[
        float, typer.Option(min=0.01, help="Size of the checkpoint, fp32 GB.")
    ] = 2.0,
    rounds: Annotated[int, typer.Option(min=1, help="Measurements of each.")] = 5,
    json_file: JsonFileOption = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the checkpoint and the tables; default: the system's temporary folder."
        ),
    ] = None,
) -> None:
    """Measure quantization from a checkpoint to tables, beside FBGEMM's operator.

    The checkpoint is random rows of dim 128 in the page cache. The real command reads it in a
    separate process. Its rate includes reading, encoding, errors, hashes and writing, on all cores.
    FBGEMM's operator encodes rows in memory, on the one core that it uses.
    """
    check_target(json_file)
    with progress_bars() as progress:
        measured = measure_quantize(gigabytes, folder, progress, rounds=rounds)
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("format", "GB/s in", "FBGEMM's operator", "ratio"):
        table.add_column(heading, justify="left" if heading == "format" else "right")
    for name in FORMATS:
        ours, theirs = measured.ours[name], measured.fbgemm[name]
        table.add_row(name, f"{ours:.2f}", f"{theirs:.2f}", f"{ours / theirs:.2f}")
    OUT.print(table)
    OUT.print(
        f"checkpoint of {size_text(measured.fp32_bytes)}, encoder {measured.encoder}, copying in "
        f"memory {measured.copy:.2f} GB/s\npeak anonymous memory "
        f"{size_text(measured.peak_anonymous_bytes)}; {os.cpu_count()} CPU cores, "
        f"{machine().class_text}",
        highlight=False,
    )
    write_json(json_file, measured.fields())
