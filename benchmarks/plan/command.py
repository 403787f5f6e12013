"""Measures the planner."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from benchmarks.plan.families import (
    CURVE_SIZES,
    PlanCase,
    curve_case,
    quality_cases,
    speed_cases,
)
from benchmarks.plan.measurement import PlanBench, PlanMeasurement, TorchRecFigures
from benchmarks.plan.scaling_chart import Series, scaling_chart
from benchmarks.plan.torchrec_planner import Outcome, Search
from kernels.machine import machine
from serving.bench.parts.installed_torchrec import INSTALL, torchrec_is_installed
from serving.commands.console import OUT, check_target, write_json, write_target
from serving.commands.options.json_option import JsonFileOption
from serving.commands.progress_bars import progress_bars
from sharded_infer.errors import InputError


def plan_command(
    family: Annotated[
        list[str] | None, typer.Option(help="Family to measure; may be repeated. Default: all.")
    ] = None,
    json_file: JsonFileOption = None,
    chart: Annotated[
        Path | None,
        typer.Option(
            help="Also measure 100 to 50,000 tables, and draw the result to this file as SVG."
        ),
    ] = None,
    torchrec_seconds: Annotated[
        float,
        typer.Option(min=0, help="Time limit of each of TorchRec's searches; 0: without TorchRec."),
    ] = 60.0,
) -> None:
    """Measure the planner's time and the quality of its plans, beside TorchRec's if installed.

    Our cost model scores both planners' plans, on the same tables, devices and batch.
    """
    check_target(json_file)
    check_target(chart)
    cases = _cases(family)
    if chart is not None:
        cases += [curve_case(tables) for tables in CURVE_SIZES]
    bench = PlanBench(torchrec_seconds)
    measured: list[PlanMeasurement] = []
    for name in dict.fromkeys(case.family for case in cases):
        of_family = [case for case in cases if case.family == name]
        rows: list[PlanMeasurement] = []
        with progress_bars() as progress:
            progress(name, 0, len(of_family))
            for measurement in bench.measure(of_family):
                rows.append(measurement)
                progress(name, len(rows), len(of_family))
        OUT.print(_table(name, rows, torchrec_seconds))
        measured += rows
    _print_notes(torchrec_seconds)
    if chart is not None:
        curve = measured[-len(CURVE_SIZES) :]
        write_target(chart, _chart(curve))
    write_json(json_file, [one.fields() for one in measured])


def _cases(families: Sequence[str] | None) -> list[PlanCase]:
    cases = [*quality_cases(), *speed_cases()]
    known = list(dict.fromkeys(case.family for case in cases))
    unknown = [name for name in families or () if name not in known]
    if unknown:
        raise InputError(f"unknown family {unknown[0]!r}, expected one of {', '.join(known)}")
    return [case for case in cases if not families or case.family in families]


def _table(family: str, measured: Sequence[PlanMeasurement], limit: float) -> Table:
    table = Table(title=family, title_justify="left", box=None, padding=(0, 1, 0, 0))
    headings = ["tables", "devices", "seconds", "gap", "memory"]
    ran = {search for one in measured for search in Search if _ran(one.torchrec[search])}
    searches = [search for search in Search if search in ran]
    for search in searches:
        headings += [f"TorchRec\n{search}\nseconds", "time\nratio", "memory"]
    for heading in headings:
        table.add_column(heading, justify="right", vertical="bottom", no_wrap=True)
    for one in measured:
        cells = [cell for s in searches for cell in _torchrec_cells(one.torchrec[s], limit)]
        table.add_row(
            f"{one.tables:,}",
            str(one.devices),
            f"{one.seconds:.3g}",
            f"{one.gap:.2%}",
            f"{one.memory_imbalance:.3f}",
            *cells,
        )
    return table


def _ran(figures: TorchRecFigures) -> bool:
    return figures.outcome not in {Outcome.NOT_RUN, Outcome.NOT_INSTALLED}


def _torchrec_cells(figures: TorchRecFigures, limit: float) -> tuple[str, str, str]:
    if figures.outcome is Outcome.PLANNED:
        return (
            f"{figures.seconds:.3g}",
            f"{figures.time_ratio:.3f}",
            f"{figures.memory_imbalance:.3f}",
        )
    short = {Outcome.TIMED_OUT: f"> {limit:g}", Outcome.REFUSED: "no plan"}
    return short.get(figures.outcome, "-"), "-", "-"


def _print_notes(torchrec_seconds: float) -> None:
    OUT.print(
        "\nseconds: to plan. gap: the slowest rank above the lower bound of all plans. "
        "memory: the fullest rank over the mean. time ratio: TorchRec's slowest rank over ours, "
        f"above 1 ours is better.\n{os.cpu_count()} CPU cores, {machine().class_text}.",
        highlight=False,
    )
    if not torchrec_is_installed():
        OUT.print(f"TorchRec is not installed; to measure it too: {INSTALL}", highlight=False)
    elif torchrec_seconds:
        OUT.print(
            f"TorchRec's searches were ended after {torchrec_seconds:g} s; -: not run, as it took "
            "longer than that on fewer tables of the family.",
            highlight=False,
        )


def _chart(curve: Sequence[PlanMeasurement]) -> str:
    series = [Series("sharded-infer", tuple((one.tables, one.seconds) for one in curve))]
    for search in Search:
        points = [(one.tables, one.torchrec[search].seconds) for one in curve]
        found = tuple((tables, seconds) for tables, seconds in points if seconds is not None)
        series.append(Series(f"TorchRec, {search}", found))
    return scaling_chart("Time to plan tables on 8 devices", series)
