"""Measures the effect of row formats on a model's ranking."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.table import Table

from benchmarks.parts.formats import measure_formats
from serving.commands.console import OUT, check_target, write_json
from serving.commands.options.json_option import JsonFileOption
from serving.commands.progress_bars import progress_bars


def formats_command(
    data: Annotated[
        Path | None,
        typer.Option(help="Click log in Criteo's format (TSV); default: one is generated."),
    ] = None,
    rows: Annotated[
        int, typer.Option(min=10, help="Lines to generate, or the most lines to read.")
    ] = 20_000,
    json_file: JsonFileOption = None,
) -> None:
    """Measure AUC, log loss and score differences of a trained model in each row format.

    Trains the demo's model on the first four fifths of the lines and scores the rest. Rows are
    stored and read back as bf16, int8, int4 and int2, and in the mix that a memory budget of a
    sixth of the fp32 size chooses.
    """
    check_target(json_file)
    torch.set_num_threads(1)
    with progress_bars() as progress:
        measured = measure_formats(data, rows, progress)
    table = Table(box=None, padding=(0, 1, 0, 0))
    for heading in ("mix", "of fp32", "AUC", "change", "log loss", "mean", "p99", "max"):
        table.add_column(heading, justify="left" if heading == "mix" else "right", no_wrap=True)
    fp32 = measured.mixes[0]
    for mix in measured.mixes:
        table.add_row(
            mix.name,
            f"{mix.table_bytes / fp32.table_bytes:.3f}",
            "-" if mix.auc is None else f"{mix.auc:.5f}",
            "-" if mix.auc is None or fp32.auc is None else f"{mix.auc - fp32.auc:+.5f}",
            "-" if mix.log_loss is None else f"{mix.log_loss:.5f}",
            f"{mix.mean_score_diff:.5f}",
            f"{mix.p99_score_diff:.5f}",
            f"{mix.max_score_diff:.5f}",
        )
    OUT.print(table)
    chosen = ", ".join(f"{count} {name}" for name, count in measured.budget_formats.items())
    OUT.print(
        f"{measured.data}: trained on {measured.training_rows:,} lines, scored "
        f"{measured.scored_rows:,} with {measured.clicks:,} clicks; mean, p99 and max are "
        f"differences of scores from fp32's; the budget chose {chosen}",
        highlight=False,
        soft_wrap=True,
    )
    write_json(json_file, asdict(measured))
