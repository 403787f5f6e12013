"""Measures the decoding of requests."""

import os
from dataclasses import asdict
from typing import Annotated

import torch
import typer
from rich.table import Table

from benchmarks.parts.decode import measure_decoding
from kernels.machine import machine
from serving.commands.console import OUT, check_target, write_json
from serving.commands.options.json_option import JsonFileOption
from serving.commands.progress_bars import progress_bars


def decode_command(
    inputs: Annotated[
        int, typer.Option(min=1, max=10_000, help="Ragged inputs of the first request.")
    ] = 100,
    batch: Annotated[
        int, typer.Option(min=1, max=65_536, help="Samples of the first request.")
    ] = 16,
    json_file: JsonFileOption = None,
) -> None:
    """Measure decoding beside protobuf's parsing and a plain loop.

    Decodes to the checked batch on one thread; measures our own message format and HTTP bodies too.
    Takes five seconds. The file's top keys are those of the ragged request.
    """
    check_target(json_file)
    torch.set_num_threads(1)
    with progress_bars() as progress:
        measured = measure_decoding(inputs, batch, progress)
    table = Table(box=None, padding=(0, 1, 0, 0))
    headings = ("request", "samples", "KiB", "native", "portable", "protobuf", "plain loop")
    for heading in (*headings, "Predict KiB", "Predict", "HTTP"):
        table.add_column(heading, justify="left" if heading == "request" else "right")
    for one in measured:
        table.add_row(
            one.request,
            str(one.batch),
            f"{one.message_bytes / 1024:.1f}",
            "-" if one.native is None else f"{one.native:.1f}",
            f"{one.portable:.1f}",
            f"{one.protobuf:.1f}",
            f"{one.plain_loop:.1f}",
            f"{one.predict_bytes / 1024:.1f}",
            "-" if one.predict is None else f"{one.predict:.1f}",
            f"{one.http:.1f}",
        )
    OUT.print(table)
    OUT.print(
        "microseconds a request; protobuf: parsing alone; plain loop: parsing and an array a "
        "tensor, unchecked; Predict: the same inputs in our own form, compiled; HTTP: with binary "
        "tensors\n"
        f"{os.cpu_count()} CPU cores, {machine().class_text}",
        highlight=False,
        soft_wrap=True,
    )
    first = measured[0]
    fields = {
        "inputs": inputs,
        "batch": batch,
        "native_us": first.native,
        "portable_us": first.portable,
        "protobuf_us": first.protobuf,
        "plain_loop_us": first.plain_loop,
        "measurements": [asdict(one) for one in measured],
    }
    write_json(json_file, fields)
