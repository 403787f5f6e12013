"""Quantizes a model's tables, with options, samples and output that publishing shares."""

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernels.wording import counted
from quant.report import QuantizationReport, total_bytes
from serving.commands.console import (
    OUT,
    JsonOption,
    figure_table,
    print_json,
    progress_bars,
    say,
    write_target,
)
from serving.commands.lazy_group import load_by_name
from sharded_infer.byte_sizes import parse_size, size_text
from sharded_infer.errors import InputError
from sharded_infer.samples.file import read_samples
from sharded_infer.samples.statistics import statistics_of
from sharded_infer.specs.feature_statistics import FeatureStatistics
from sharded_infer.specs.model_spec import ModelSpec
from sharded_infer.specs.spec_file import load_spec

if TYPE_CHECKING:
    from sharded_infer.importing.id_maps.id_map_source import IdMapSource
    from sharded_infer.publishing.format_selection import FormatPlan

SpecOption = Annotated[Path, typer.Option(help="The model's description, model.toml.")]
WeightsOption = Annotated[
    Path,
    typer.Option(
        help="Trained weights: .safetensors, .safetensors.index.json, .pt (read without "
        "unpickling), .npy, .npz, or a folder of a torch distributed checkpoint or of .npy files."
    ),
]
SamplesOption = Annotated[
    Path | None,
    typer.Option(
        help="Samples (JSON, .csv, .tsv, .parquet) to count how features are used: for the "
        "planner and for budgets."
    ),
]
CalibrationOption = Annotated[
    Path | None,
    typer.Option(
        help="Samples (JSON, .csv, .tsv, .parquet, .safetensors), with labels or without, on "
        "which scores are compared: fp32, as stored, and other formats."
    ),
]
MemoryBudgetOption = Annotated[
    str | None,
    typer.Option(
        help="Choose the formats that lose least among those with which all tables "
        "fit, such as 40GB."
    ),
]
ErrorBudgetOption = Annotated[
    float | None,
    typer.Option(
        help="Choose the smallest formats that lose at most this share of the embeddings' "
        "power, such as 1e-4.",
        min=0.0,
    ),
]


HtmlOption = Annotated[
    Path | None, typer.Option("--html", help="Also write the report as a page to this file.")
]


def write_page(path: Path, report: QuantizationReport) -> None:
    """Write a report as a page; InputError if the file cannot be written."""
    render = load_by_name("sharded_infer.reports.quantization.page:render_quantization_page")
    write_target(path, render(report))


def with_budget(
    spec: ModelSpec, memory_budget: str | None, error_budget: float | None
) -> ModelSpec:
    """The spec with the command line's budget; InputError for two budgets or a wrong one."""
    if memory_budget is None and error_budget is None:
        return spec
    if memory_budget is not None and error_budget is not None:
        raise InputError("--memory-budget and --error-budget exclude each other")
    if memory_budget is not None:
        parse_size(memory_budget, "--memory-budget")
    if error_budget is not None and not math.isfinite(error_budget):
        raise InputError(f"--error-budget: expected a finite number, got {error_budget:g}")
    quantization = replace(
        spec.quantization, memory_budget=memory_budget, error_budget=error_budget
    )
    return replace(spec, quantization=quantization)


def read_trained(
    spec: ModelSpec,
    weights: Path,
    spec_folder: Path,
    calibration: Path | None,
    *,
    with_tower: bool = True,
) -> tuple[Any, Any, Any]:
    """Read the tables' weights, the tower and calibration samples; imports torch after the spec."""
    load_by_name("torch:set_num_threads")(1)
    source = load_by_name("quant.sources.checkpoint:open_weights")(weights)
    # Before the tower: a wrong dim makes its shapes wrong too.
    load_by_name("sharded_infer.publishing.format_selection:find_weights")(spec, source)
    measured = tower = None
    if calibration is not None:
        read = load_by_name("sharded_infer.samples.calibration:read_calibration")
        measured = read(spec, calibration)
    if with_tower:
        tower = load_by_name("sharded_infer.importing.tower_source:load_tower")(
            spec, source, spec_folder
        )
    return source, tower, measured


def counted_statistics(
    spec: ModelSpec, samples: Path | None, spec_folder: Path
) -> Mapping[str, FeatureStatistics] | None:
    """How samples use the features; None without samples.

    Raw ids count as their rows if the spec has the paths of all its id maps. Ids that the model
    refuses are not counted. Paths of the spec are relative to its folder.
    """
    if samples is None:
        return None
    read = read_samples(samples, strings=spec.string_inputs, model=spec.name)
    id_maps = [table.id_map for table in spec.mapped_tables]
    if id_maps and all(one is not None and one.file is not None for one in id_maps):
        sources = id_map_sources(spec, spec_folder)
        mapped = load_by_name("sharded_infer.publishing.sampled_ids:mapped_samples")
        return statistics_of(spec, mapped(spec, read, sources, leave_out=True))
    return statistics_of(spec, read)


def id_map_sources(spec: ModelSpec, spec_folder: Path) -> Mapping[str, "IdMapSource"]:
    """Id maps that the spec names, by table."""
    if not spec.mapped_tables:
        return {}
    sources: Mapping[str, IdMapSource] = load_by_name(
        "sharded_infer.publishing.written_id_maps:id_map_sources"
    )(spec, spec_folder)
    return sources


def print_format_plan(plan: "FormatPlan") -> None:
    """Print the formats of all tables and their reasons."""
    before = sum(4 * t.rows * t.dim for t in plan.tables)
    after = sum(t.stored_bytes for t in plan.tables)
    headings = ("table", "rows", "dim", "format", "fp32", "stored", "why")
    table = figure_table(
        f"formats of {plan.spec.name}", headings, left=("table", "format", "why"), overflow="fold"
    )
    for stored in plan.tables:
        table.add_row(
            stored.name,
            f"{stored.rows:,}",
            str(stored.dim),
            stored.row_format,
            size_text(4 * stored.rows * stored.dim),
            size_text(stored.stored_bytes),
            plan.reasons[stored.name],
        )
    OUT.print(table)
    text = f"tables {size_text(before)} -> {size_text(after)} ({after / before:.1%})"
    if plan.budget is not None:
        text += f", expected loss {plan.budget.loss:.3g} of the embeddings' power"
    say(text)


def format_plan_fields(plan: "FormatPlan") -> dict[str, object]:
    """The format plan for scripts."""
    return {
        "model": plan.spec.name,
        "fp32_bytes": sum(4 * t.rows * t.dim for t in plan.tables),
        "stored_bytes": sum(t.stored_bytes for t in plan.tables),
        "loss": None if plan.budget is None else plan.budget.loss,
        "tables": [
            {
                "name": t.name,
                "row_format": t.row_format,
                "fp32_bytes": 4 * t.rows * t.dim,
                "stored_bytes": t.stored_bytes,
                "reason": plan.reasons[t.name],
            }
            for t in plan.tables
        ],
    }


def summary(report: QuantizationReport) -> str:
    """One or two lines about the effect of quantization."""
    before, after = total_bytes(report.tables)
    lines = [f"tables {size_text(before)} -> {size_text(after)} ({after / before:.1%})"]
    if report.calibration is not None:
        fp32, published = report.calibration.mixes[:2]
        lines.append(
            f"calibration, {counted(report.calibration.samples, 'sample', ',')}: scores differ by "
            f"{published.mean_score_diff:.2g} in the mean, {published.p99_score_diff:.2g} at the "
            f"99th percentile, {published.max_score_diff:.2g} at most"
            + _auc(fp32.auc, published.auc)
        )
        by_output = report.calibration.by_output
        if len(by_output) > 1:
            lines += [
                f"  {after.name}: {after.mean_score_diff:.2g} in the mean, "
                f"{after.max_score_diff:.2g} at most{_auc(before.auc, after.auc)}"
                for after, before in by_output
            ]
    return "\n".join(lines)


def _auc(before: float | None, after: float | None) -> str:
    if before is None or after is None:
        return ""
    return f"; AUC {before:.5f} -> {after:.5f}"


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
