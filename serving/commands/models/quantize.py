"""Quantizes a model's tables."""

import time
from pathlib import Path
from typing import Annotated

import typer

from serving.commands.console import JsonOption, print_json, progress_bars, say
from serving.commands.lazy_group import load_by_name
from serving.commands.models.quantization import (
    CalibrationOption,
    ErrorBudgetOption,
    HtmlOption,
    MemoryBudgetOption,
    SamplesOption,
    SpecOption,
    WeightsOption,
    counted_statistics,
    format_plan_fields,
    id_map_sources,
    print_format_plan,
    read_trained,
    summary,
    with_budget,
    write_page,
)
from sharded_infer.errors import InputError
from sharded_infer.specs.spec_file import load_spec


def quantize_command(
    spec: SpecOption,
    weights: WeightsOption,
    out: Annotated[
        Path | None, typer.Option(help="Folder to make; not needed with --dry-run.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show the formats and sizes; write nothing.")
    ] = False,
    memory_budget: MemoryBudgetOption = None,
    error_budget: ErrorBudgetOption = None,
    samples: SamplesOption = None,
    calibration: CalibrationOption = None,
    html: HtmlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Quantize a model's tables into a folder, with a report of the errors.

    The folder gets the tables, tables.json (where each row is) and report.json. It is written to a
    staging folder and renamed, so it is never incomplete. With --calibration the
    weights must contain the tower too, or the spec must name its program. Tables are read and
    written in chunks on all cores, so memory stays small.
    """
    described = with_budget(load_spec(spec), memory_budget, error_budget)
    if out is None and not dry_run:
        raise InputError("--out: expected a folder to make, or --dry-run")
    statistics = counted_statistics(described, samples, spec.parent)
    source, tower, measured = read_trained(
        described, weights, spec.parent, calibration, with_tower=calibration is not None
    )
    started = time.perf_counter()
    with progress_bars() as progress:
        plan = load_by_name("sharded_infer.publishing.quantization:open_format_plan")(
            described, source, statistics, progress
        )
        report = None
        if out is not None and not dry_run:
            report = load_by_name("sharded_infer.publishing.quantization:quantize")(
                plan,
                out.absolute(),
                tower=tower,
                calibration=measured,
                id_maps=id_map_sources(described, spec.parent) if calibration is not None else None,
                progress=progress,
            )
    seconds = time.perf_counter() - started
    if html is not None and report is not None:
        write_page(html, report)
    if as_json:
        fields = format_plan_fields(plan) if report is None else report.fields()
        print_json({"seconds": seconds, **fields})
    elif report is None:
        print_format_plan(plan)
    else:
        say(f"{summary(report)}\n{out}")
