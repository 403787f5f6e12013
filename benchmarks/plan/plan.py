"""Our planner and TorchRec's on the same case, both scored by our cost model."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.plan.families import (
    CURVE_SIZES,
    PlanCase,
    curve_case,
    quality_cases,
    speed_cases,
)
from benchmarks.plan.scaling_chart import scaling_chart
from benchmarks.plan.torchrec_planner import Outcome, Search, TorchRecRun, run_torchrec
from serving.bench.charts.line_chart import Series
from serving.bench.parts.installed_torchrec import INSTALL, torchrec_is_installed
from serving.commands.bench.report import Form, print_notes, print_table
from serving.commands.console import OUT, check_target, write_json, write_target
from serving.commands.options.json_option import JsonFileOption
from serving.commands.progress_bars import progress_bars
from sharded_infer.errors import InputError
from sharded_infer.planning.plan import check_plan
from sharded_infer.planning.plan_result import PlanFigures, PlanResult, figures_of
from sharded_infer.planning.planner import make_plan

_REPEATS = 3
_REPEAT_BELOW_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class TorchRecFigures:
    """TorchRec's seconds and memory imbalance (fullest rank over mean); None without a plan.

    `time_ratio` is its slowest rank's over ours, by our cost model: above 1 ours is better.
    """

    outcome: Outcome
    seconds: float | None = None
    time_ratio: float | None = None
    memory_imbalance: float | None = None
    reason: str = ""

    @property
    def has_run(self) -> bool:
        """True if TorchRec ran."""
        return self.outcome not in {Outcome.NOT_RUN, Outcome.NOT_INSTALLED}

    def text(self, limit: float) -> str | None:
        """Its seconds, or why there is no plan."""
        if self.outcome is Outcome.PLANNED:
            return f"{self.seconds:.3g}"
        return {Outcome.TIMED_OUT: f"> {limit:g}", Outcome.REFUSED: "no plan"}.get(self.outcome)


@dataclass(frozen=True, slots=True)
class PlanMeasurement:
    """Our seconds, gap above the lower bound, and memory of the fullest rank over the mean."""

    family: str
    tables: int
    devices: int
    seconds: float
    gap: float
    memory_imbalance: float
    torchrec: dict[Search, TorchRecFigures]

    def fields(self) -> dict[str, object]:
        """The figures for JSON; `torchrec_...` without a search's name is its better plan."""
        found = {s: f for s, f in self.torchrec.items() if f.time_ratio is not None}
        best = min(found, key=lambda s: found[s].time_ratio or 0.0, default=None)
        values: dict[str, object] = {
            "family": self.family,
            "tables": self.tables,
            "devices": self.devices,
            "seconds": self.seconds,
            "gap": self.gap,
            "memory_imbalance": self.memory_imbalance,
            "torchrec_seconds": found[best].seconds if best else None,
            "torchrec_time_ratio": found[best].time_ratio if best else None,
            "torchrec_memory_imbalance": found[best].memory_imbalance if best else None,
            "torchrec_search": best,
        }
        for search, figures in self.torchrec.items():
            values |= {
                f"torchrec_{search}_outcome": figures.outcome,
                f"torchrec_{search}_seconds": figures.seconds,
                f"torchrec_{search}_time_ratio": figures.time_ratio,
                f"torchrec_{search}_memory_imbalance": figures.memory_imbalance,
            }
        return values


@dataclass(slots=True)
class PlanBench:
    """Measures cases, without searches that timed out on fewer tables of the family.

    `limit_seconds` is of each TorchRec run; 0 leaves TorchRec out.
    """

    limit_seconds: float
    _gave_up: set[tuple[str, Search]] = field(default_factory=set)

    def measure(self, cases: Sequence[PlanCase]) -> Iterator[PlanMeasurement]:
        """Measure cases one after another; those of a family with ascending numbers of tables."""
        for case in cases:
            seconds, result = _plan(case)
            yield PlanMeasurement(
                family=case.family,
                tables=len(case.uses),
                devices=len(case.topology.devices),
                seconds=seconds,
                gap=result.gap,
                memory_imbalance=result.figures.memory_imbalance,
                torchrec={s: self._torchrec(case, s, result.figures) for s in Search},
            )

    def _torchrec(self, case: PlanCase, search: Search, ours: PlanFigures) -> TorchRecFigures:
        if self.limit_seconds == 0:
            return TorchRecFigures(Outcome.NOT_RUN, reason="left out")
        if (case.family, search) in self._gave_up:
            return TorchRecFigures(Outcome.NOT_RUN, reason="timed out on fewer tables")
        run = run_torchrec(case, search, self.limit_seconds)
        if run.outcome is Outcome.TIMED_OUT:
            self._gave_up.add((case.family, search))
        return _figures(case, run, ours)


def _plan(case: PlanCase) -> tuple[float, PlanResult]:
    seconds: list[float] = []
    while len(seconds) < _REPEATS and sum(seconds) < _REPEAT_BELOW_SECONDS:
        start = time.perf_counter()
        result = make_plan(case.load())
        seconds.append(time.perf_counter() - start)
    check_plan(result.plan, {name: use.table for name, use in case.uses.items()})
    return sorted(seconds)[len(seconds) // 2], result


def _figures(case: PlanCase, run: TorchRecRun, ours: PlanFigures) -> TorchRecFigures:
    if run.plan is None:
        return TorchRecFigures(run.outcome, run.seconds, reason=run.reason)
    theirs = figures_of(run.plan, case.load())
    return TorchRecFigures(
        run.outcome,
        run.seconds,
        time_ratio=theirs.max_seconds / ours.max_seconds,
        memory_imbalance=theirs.memory_imbalance,
    )


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
        _print_table(name, rows, torchrec_seconds)
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


def _print_table(family: str, measured: Sequence[PlanMeasurement], limit: float) -> None:
    ran = {search for one in measured for search in Search if one.torchrec[search].has_run}
    searches = [search for search in Search if search in ran]
    columns: list[tuple[str, Form]] = [
        ("tables", ",d"), ("devices", "d"), ("seconds", ".3g"), ("gap", ".2%"), ("memory", ".3f"),
    ]  # fmt: skip
    for search in searches:
        columns += [
            (f"TorchRec\n{search}\nseconds", str),
            ("time\nratio", ".3f"),
            ("memory", ".3f"),
        ]
    rows: list[list[object]] = []
    for one in measured:
        rows.append([one.tables, one.devices, one.seconds, one.gap, one.memory_imbalance])
        for figures in map(one.torchrec.__getitem__, searches):
            rows[-1] += [figures.text(limit), figures.time_ratio, figures.memory_imbalance]
    print_table(columns, rows, title=family)


def _print_notes(torchrec_seconds: float) -> None:
    print_notes(
        "\nseconds: to plan. gap: the slowest rank above the lower bound of all plans. "
        "memory: the fullest rank over the mean. time ratio: TorchRec's slowest rank over ours, "
        "above 1 ours is better."
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
