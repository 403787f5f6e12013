"""Rates of the lookup kernel."""

from typing import Annotated

import typer

from kernels.machine import machine
from kernels.row_format import RowFormat
from serving.bench.parts.lookup import DIM, IDS_OF_A_BAG, TABLES, measure_lookups
from serving.commands.bench.report import TEXT, Report, bench_command, times
from sharded_infer.progress import Progress

_SHOWN_FIRST = ("2 MiB", "uniform", 270)


@bench_command
def bench_lookup_command(
    progress: Progress,
    row_format: Annotated[
        RowFormat, typer.Option("--format", help="Row format of the tables.")
    ] = RowFormat.INT8,
    rows: Annotated[int, typer.Option(min=16, help="Rows of each of the 26 tables.")] = 400_000,
    seconds: Annotated[
        float,
        typer.Option(min=0.01, help="Seconds of calls for each size, distribution and page size."),
    ] = 1.5,
) -> Report:
    """Measure pooled lookups beside FBGEMM's kernel, torch's embedding_bag and a bare gather.

    Runs on one thread with bags of 8 and new ids for every call: uniform and Zipf (1.05) ids, 4 KiB
    and 2 MiB pages, and both sides' defaults: ours in a mapped file, FBGEMM's in torch's memory.
    Takes a minute and 6 GB. The file's top keys are those of uniform ids, 2 MiB
    pages and 270 samples.
    """
    measured = measure_lookups(row_format, rows, seconds, progress)
    millions = times(1e-6, ".1f")
    [chosen] = [m for m in measured if (m["pages"], m["ids"], m["batch"]) == _SHOWN_FIRST]
    return Report(
        [
            ("pages", TEXT), ("ids", TEXT), ("samples", "d"), ("ours", millions),
            ("FBGEMM", millions), ("ratio", ".2f"), ("torch", millions), ("gather", millions),
            ("of it", ".2f"),
        ],
        [
            (
                one["pages"], one["ids"], one["batch"], one["ours"], one["fbgemm"],
                one["fbgemm"] and one["ours"] / one["fbgemm"], one["torch"], one["gather_limit"],
                one["ours"] / one["gather_limit"],
            )
            for one in measured
        ],
        [
            f"million rows a second, {row_format}, {TABLES} tables of {rows:,} rows of dim {DIM}, "
            f"bags of {IDS_OF_A_BAG}; torch: bf16 rows"
        ],
        {
            "format": row_format,
            "instruction_set": machine().class_text,
            "rows_per_second": chosen["ours"],
            "fbgemm_rows_per_second": chosen["fbgemm"],
            "gather_limit_rows_per_second": chosen["gather_limit"],
            "measurements": measured,
        },
    )  # fmt: skip
