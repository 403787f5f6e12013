"""Our planner and TorchRec's on the same cases, both scored by our cost model."""

import math
import time
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.plan.families import CURVE_SIZES, PlanCase, curve_case, quality_cases, speed_cases
from benchmarks.plan.torchrec_planner import Outcome, Search, TorchRecRun, run_torchrec
from serving.bench.line_chart import Axis, Series, line_chart
from serving.bench.parts.installed_torchrec import INSTALL, torchrec_is_installed
from serving.commands.bench.report import Form, Report, bench_command, print_table
from serving.commands.console import check_target, write_target
from sharded_infer.errors import InputError
from sharded_infer.planning.plan import check_plan
from sharded_infer.planning.plan_result import PlanResult, figures_of
from sharded_infer.planning.planner import make_plan
from sharded_infer.progress import Progress
from sharded_infer.reports.html.scale import log_scale

_REPEATS = 3
_REPEAT_BELOW_SECONDS = 2.0
_NOT_RUN = TorchRecRun(Outcome.NOT_RUN)


@bench_command
def plan_command(
    progress: Progress,
    family: Annotated[
        list[str] | None, typer.Option(help="Family to measure; may be repeated. Default: all.")
    ] = None,
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
) -> Report:
    """Measure the planner's time and the quality of its plans, beside TorchRec's if installed.

    Our cost model scores both planners' plans, on the same tables, devices and batch.
    """
    check_target(chart)
    cases = _cases(family)
    if chart is not None:
        cases += [curve_case(tables) for tables in CURVE_SIZES]
    measured: list[dict[str, Any]] = []
    for name, of_family in groupby(cases, key=lambda case: case.family):
        rows = []
        gave_up: set[Search] = set()  # on fewer tables of the family
        for case in of_family:
            runs = {
                search: _NOT_RUN
                if torchrec_seconds == 0 or search in gave_up
                else run_torchrec(case, search, torchrec_seconds)
                for search in Search
            }
            gave_up |= {search for search in Search if runs[search].outcome is Outcome.TIMED_OUT}
            rows.append(measure_case(case, runs))
            measured.append(rows[-1])
            progress("planning", len(measured), len(cases))
        print_table(*_table(rows, torchrec_seconds), title=name)
    if chart is not None:
        write_target(chart, _chart(measured[-len(CURVE_SIZES) :]))
    return Report([], [], _notes(torchrec_seconds), measured)


def measure_case(case: PlanCase, runs: Mapping[Search, TorchRecRun]) -> dict[str, Any]:
    """Our figures of a case beside those of TorchRec's runs.

    `gap` is the slowest rank's time above the lower bound, `memory_imbalance` the fullest rank's
    memory over the mean, `time_ratio` TorchRec's slowest rank over ours: above 1 ours is better.
    `torchrec_...` without a search's name is its better plan.
    """
    seconds, result = _plan(case)
    fields: dict[str, Any] = {
        "family": case.family,
        "tables": len(case.uses),
        "devices": len(case.topology.devices),
        "seconds": seconds,
        "gap": result.gap,
        "memory_imbalance": result.figures.memory_imbalance,
    }
    plans = {}
    for search, run in runs.items():
        figures = {"seconds": run.seconds, "time_ratio": None, "memory_imbalance": None}
        if run.plan is not None:
            theirs = figures_of(run.plan, case.load())
            figures["time_ratio"] = theirs.max_seconds / result.figures.max_seconds
            figures["memory_imbalance"] = theirs.memory_imbalance
            plans[search] = figures
        fields[f"torchrec_{search}_outcome"] = run.outcome
        fields |= {f"torchrec_{search}_{name}": value for name, value in figures.items()}
    best = min(plans, key=lambda search: plans[search]["time_ratio"] or 0.0, default=None)
    better = plans[best] if best else dict.fromkeys(("seconds", "time_ratio", "memory_imbalance"))
    fields |= {f"torchrec_{name}": value for name, value in better.items()}
    return {**fields, "torchrec_search": best}


def _plan(case: PlanCase) -> tuple[float, PlanResult]:
    seconds: list[float] = []
    while len(seconds) < _REPEATS and sum(seconds) < _REPEAT_BELOW_SECONDS:
        start = time.perf_counter()
        result = make_plan(case.load())
        seconds.append(time.perf_counter() - start)
    check_plan(result.plan, {name: use.table for name, use in case.uses.items()})
    return sorted(seconds)[len(seconds) // 2], result


def _cases(families: Sequence[str] | None) -> list[PlanCase]:
    cases = [*quality_cases(), *speed_cases()]
    known = list(dict.fromkeys(case.family for case in cases))
    unknown = [name for name in families or () if name not in known]
    if unknown:
        raise InputError(f"unknown family {unknown[0]!r}, expected one of {', '.join(known)}")
    return [case for case in cases if not families or case.family in families]


def _table(
    measured: Sequence[dict[str, Any]], limit: float
) -> tuple[list[tuple[str, Form]], list[list[object]]]:
    without = {Outcome.NOT_RUN, Outcome.NOT_INSTALLED}
    ran = [
        search
        for search in Search
        if any(one[f"torchrec_{search}_outcome"] not in without for one in measured)
    ]
    columns: list[tuple[str, Form]] = [
        ("tables", ",d"), ("devices", "d"), ("seconds", ".3g"), ("gap", ".2%"), ("memory", ".3f"),
    ]  # fmt: skip
    keys = ["tables", "devices", "seconds", "gap", "memory_imbalance"]
    for search in ran:
        columns += [(f"TorchRec\n{search}\nseconds", str), ("time\nratio", ".3f")]
        columns.append(("memory", ".3f"))
        keys += [f"torchrec_{search}_{name}" for name in ("text", "time_ratio", "memory_imbalance")]
    rows: list[list[object]] = []
    for one in measured:
        texts = {f"torchrec_{search}_text": _seconds_text(one, search, limit) for search in ran}
        rows.append([(one | texts)[key] for key in keys])
    return columns, rows


def _seconds_text(measured: dict[str, Any], search: Search, limit: float) -> str | None:
    """TorchRec's seconds, or why there is no plan."""
    outcome = measured[f"torchrec_{search}_outcome"]
    if outcome is Outcome.PLANNED:
        return f"{measured[f'torchrec_{search}_seconds']:.3g}"
    return {Outcome.TIMED_OUT: f"> {limit:g}", Outcome.REFUSED: "no plan"}.get(outcome)


def _notes(torchrec_seconds: float) -> list[str]:
    notes = [
        "\nseconds: to plan. gap: the slowest rank above the lower bound of all plans. "
        "memory: the fullest rank over the mean. time ratio: TorchRec's slowest rank over ours, "
        "above 1 ours is better."
    ]
    if not torchrec_is_installed():
        notes.append(f"TorchRec is not installed; to measure it too: {INSTALL}")
    elif torchrec_seconds:
        notes.append(
            f"TorchRec's searches were ended after {torchrec_seconds:g} s; -: not run, as it took "
            "longer than that on fewer tables of the family."
        )
    return notes


def _chart(curve: Sequence[dict[str, Any]]) -> str:
    names = {"": "sharded-infer"} | {f"torchrec_{s}_": f"TorchRec, {s}" for s in Search}
    series = []
    for key, name in names.items():
        points = [(one["tables"], one[f"{key}seconds"]) for one in curve]
        series.append(Series(name, tuple(point for point in points if point[1] is not None)))
    return scaling_chart("Time to plan tables on 8 devices", series)


def scaling_chart(title: str, series: Sequence[Series]) -> str:
    """Draw up to three series of tables and seconds, and N log N through the first's last point."""
    ours = series[0].points
    last_tables, last_seconds = ours[-1]
    unit = last_seconds / (last_tables * math.log(last_tables))
    guide = Series("N log N", tuple((n, unit * n * math.log(n)) for n, _ in ours))
    points = [point for one in (*series, guide) for point in one.points]
    return line_chart(
        title,
        Axis("tables", log_scale(tables for tables, _ in points)),
        Axis("seconds to plan", log_scale(seconds for _, seconds in points)),
        series,
        guide=guide,
    )
