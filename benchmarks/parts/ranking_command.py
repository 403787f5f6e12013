"""Measures requests of one user with the user's features sent once, and for every pair."""

from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from benchmarks.parts.ranking import measure_ranking
from benchmarks.parts.ranking_models import RankingKind, RankingModel
from kernels.machine import machine
from serving.commands.console import OUT, check_target, write_json
from serving.commands.options.json_option import JsonFileOption
from serving.commands.options.tower_precision import on_processors
from serving.commands.progress_bars import progress_bars
from sharded_infer.specs.precision import Precision


def ranking_command(
    model: Annotated[
        list[RankingKind] | None,
        typer.Option(help="Model to rank with; may be repeated.  [default: all]"),
    ] = None,
    precision: Annotated[
        list[Precision] | None,
        typer.Option(help="Precision of the tower; may be repeated.  [default: fp32, bf16, int8]"),
    ] = None,
    pairs: Annotated[int, typer.Option(min=2, help="Candidates of a request.")] = 270,
    rows: Annotated[
        int, typer.Option(min=1, help="Rows of each table; of a DLRM-v2 the most.")
    ] = 100_000,
    requests: Annotated[int, typer.Option(min=1, help="Requests of each form.")] = 100,
    json_file: JsonFileOption = None,
) -> None:
    """Measure a user's features sent once beside sent for every pair.

    20 of 26 features are the user's. The models are MLPerf Inference's DLRM-v2, a DeepFM of three
    layers of 400 and a two-tower model, the last two with tables of dim 32. Both forms take turns
    on one core. Shown is the thread's processor time from the message to the scores. Takes two
    minutes and 2 GB.
    """
    check_target(json_file)
    on_processors(precision)
    chosen = [
        RankingModel(kind, one, rows)
        for kind in dict.fromkeys(model or RankingKind)
        for one in dict.fromkeys(precision or (Precision.FP32, Precision.BF16, Precision.INT8))
    ]
    with progress_bars() as progress:
        measured = measure_ranking(chosen, pairs=pairs, requests=requests, progress=progress)
    table = Table(box=None, padding=(0, 1, 0, 0))
    for heading in ("model", "tower", "ms, every pair", "ms, once", "ratio", "largest difference"):
        table.add_column(heading, justify="left" if heading in {"model", "tower"} else "right")
    for one in measured:
        table.add_row(
            one.model,
            one.precision,
            f"{one.every_pair_seconds * 1e3:.3g}",
            f"{one.once_seconds * 1e3:.3g}",
            f"{one.gain:.2f}",
            f"{one.largest_difference:.1g}",
        )
    OUT.print(table)
    OUT.print(
        f"processor time of a request of {pairs} pairs, 20 of 26 features the user's, "
        f"{machine().class_text}",
        soft_wrap=True,
    )
    write_json(json_file, {"measurements": [asdict(one) | {"gain": one.gain} for one in measured]})
