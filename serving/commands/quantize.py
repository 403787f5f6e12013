"""Quantizes a model's tables."""

import time
from pathlib import Path
from typing import Annotated

import torch
import typer

from quant.checkpoint import open_weights
from serving.commands.console import OUT, print_json
from serving.commands.json_option import JsonOption
from serving.commands.quantization import (
    CalibrationOption,
    ErrorBudgetOption,
    MemoryBudgetOption,
    SamplesOption,
    SpecOption,
    WeightsOption,
    format_plan_fields,
    print_format_plan,
    summary,
    with_budget,
)
from serving.progress import progress_bars
from sharded_infer.errors import InputError
from sharded_infer.format_plan import find_weights
from sharded_infer.quantize import open_format_plan, quantize
from sharded_infer.samples.calibration import read_calibration
from sharded_infer.samples.file import read_samples
from sharded_infer.samples.statistics import statistics_of
from sharded_infer.spec_document import load_spec
from sharded_infer.tower_source import load_tower


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
    as_json: JsonOption = False,
) -> None:
    """Quantize a model's tables into a folder, with a report of what that did to them.

    The folder gets the tables, tables.json (where each row is), report.json and report.html. It is
    written beside its place and renamed: it is there whole, or not at all. With --calibration the
    weights must hold the tower too, or the spec name its program. Tables are read and written in
    chunks on all cores; memory stays small whatever their size.
    """
    torch.set_num_threads(1)
    described = with_budget(load_spec(spec), memory_budget, error_budget)
    if out is None and not dry_run:
        raise InputError("--out: expected a folder to make, or --dry-run")
    source = open_weights(weights)
    # Before the tower: where a dim is wrong, its shapes are too.
    find_weights(described, source)
    statistics = None if samples is None else statistics_of(described, read_samples(samples))
    measured = None if calibration is None else read_calibration(described, calibration)
    tower = None if measured is None else load_tower(described, source, spec.parent)
    started = time.perf_counter()
    with progress_bars() as progress:
        plan = open_format_plan(described, source, statistics, progress)
        report = None
        if out is not None and not dry_run:
            report = quantize(
                plan, out.absolute(), tower=tower, calibration=measured, progress=progress
            )
    seconds = time.perf_counter() - started
    if as_json:
        fields = format_plan_fields(plan) if report is None else report.fields()
        print_json({"seconds": seconds, **fields})
    elif report is None:
        print_format_plan(plan)
    else:
        OUT.print(f"{summary(report)}\n{out}", highlight=False, soft_wrap=True)
