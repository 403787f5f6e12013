"""Our planner and TorchRec's on the same cases, both scored by our cost model."""

import math
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.plan.families import CURVE_SIZES, PlanCase, curve_case, quality_cases, speed_cases
from serving.bench.line_chart import Axis, Series, line_chart
from serving.bench.parts.installed_torchrec import INSTALL, torchrec_is_installed
from serving.commands.bench.report import TEXT, Form, Report, bench_command
from serving.commands.console import check_target, write_target
from sharded_infer.errors import InputError, PlanError
from sharded_infer.planning.plan import Plan, check_plan
from sharded_infer.planning.plan_result import PlanResult, figures_of
from sharded_infer.planning.planner import make_plan
from sharded_infer.progress import Progress
from sharded_infer.reports.html.scale import log_scale

_REPEATS = 3
_REPEAT_BELOW_SECONDS = 2.0
_START_SECONDS = 300  # to import TorchRec and build its modules; beyond, something is wrong


class Search(StrEnum):
    """TorchRec's searches: its inference default, table-wise only; or all kinds of sharding."""

    QUICK = "quick"
    FULL = "full"


class Outcome(StrEnum):
    """Outcome of a run."""

    PLANNED = "planned"
    TIMED_OUT = "timed out"
    REFUSED = "no plan"
    NOT_RUN = "not run"
    NOT_INSTALLED = "not installed"


@dataclass(frozen=True, slots=True)
class TorchRecRun:
    """Result of TorchRec's planner, with seconds (the median if short); None without a plan."""

    outcome: Outcome
    seconds: float | None = None
    plan: Plan | None = None


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
    gave_up: set[tuple[str, Search]] = set()  # on fewer tables of a family
    for case in cases:
        runs = {
            search: _NOT_RUN
            if torchrec_seconds == 0 or (case.family, search) in gave_up
            else run_torchrec(case, search, torchrec_seconds)
            for search in Search
        }
        gave_up |= {
            (case.family, search)
            for search, run in runs.items()
            if run.outcome is Outcome.TIMED_OUT
        }
        measured.append(measure_case(case, runs))
        progress("planning", len(measured), len(cases))
    if chart is not None:
        write_target(chart, _chart(measured[-len(CURVE_SIZES) :]))
    columns: list[tuple[str, Form, str]] = [
        ("family", TEXT, "family"),
        ("tables", ",d", "tables"),
        ("devices", "d", "devices"),
        ("seconds", ".3g", "seconds"),
        ("gap", ".2%", "gap"),
        ("memory", ".3f", "memory_imbalance"),
    ]
    for search in Search:
        columns += [
            (f"TorchRec\n{search}\nseconds", str, f"torchrec_{search}_text"),
            ("time\nratio", ".3f", f"torchrec_{search}_time_ratio"),
            ("memory", ".3f", f"torchrec_{search}_memory_imbalance"),
        ]
    return Report(
        columns,
        [one | _seconds_texts(one, torchrec_seconds) for one in measured],
        _notes(torchrec_seconds),
        measured,
    )


def run_torchrec(case: PlanCase, search: Search, limit_seconds: float) -> TorchRecRun:
    """Plan int8 tables on equal GPUs with TorchRec, in a process that is killed at a time limit."""
    if not torchrec_is_installed():
        return TorchRecRun(Outcome.NOT_INSTALLED)
    request = case, search.value, limit_seconds
    try:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.plan.torchrec_process"],
            input=pickle.dumps(request),
            capture_output=True,
            timeout=_START_SECONDS + limit_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return TorchRecRun(Outcome.TIMED_OUT)
    if done.returncode == -signal.SIGALRM:
        return TorchRecRun(Outcome.TIMED_OUT)
    if done.returncode != 0:
        words = done.stderr.decode(errors="replace").strip().splitlines()
        last = (words or [f"exit code {done.returncode}"])[-1]
        raise PlanError(f"TorchRec's planner failed on {case.family!r}: {last}")
    seconds, shards = pickle.loads(done.stdout)  # noqa: S301 - of our own process
    if seconds is None:
        return TorchRecRun(Outcome.REFUSED)
    # Row-wise shards of a table with fewer rows than ranks are empty on the last ranks.
    plan = Plan(case.topology, tuple(s for s in shards if s.rows and s.columns))
    try:
        check_plan(plan, {name: use.table for name, use in case.uses.items()})
    except PlanError:
        # TorchRec does not count the scale and bias of a row.
        return TorchRecRun(Outcome.REFUSED, seconds)
    return TorchRecRun(Outcome.PLANNED, seconds, plan)


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
    best: dict[str, Any] = dict.fromkeys(("seconds", "time_ratio", "memory_imbalance", "search"))
    for search, run in runs.items():
        figures = {"seconds": run.seconds, "time_ratio": None, "memory_imbalance": None}
        if run.plan is not None:
            theirs = figures_of(run.plan, case.load())
            ratio = theirs.max_seconds / result.figures.max_seconds
            figures |= {"time_ratio": ratio, "memory_imbalance": theirs.memory_imbalance}
            if best["search"] is None or ratio < best["time_ratio"]:
                best = {**figures, "search": search}
        fields[f"torchrec_{search}_outcome"] = run.outcome
        fields |= {f"torchrec_{search}_{name}": value for name, value in figures.items()}
    return fields | {f"torchrec_{name}": value for name, value in best.items()}


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


def _seconds_texts(measured: dict[str, Any], limit: float) -> dict[str, str | None]:
    """Seconds of TorchRec's searches, or why there is no plan."""
    said = {Outcome.TIMED_OUT: f"> {limit:g}", Outcome.REFUSED: "no plan"}
    texts = {}
    for search in Search:
        outcome, seconds = (
            measured[f"torchrec_{search}_{name}"] for name in ("outcome", "seconds")
        )
        is_planned = outcome is Outcome.PLANNED
        texts[f"torchrec_{search}_text"] = f"{seconds:.3g}" if is_planned else said.get(outcome)
    return texts


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
