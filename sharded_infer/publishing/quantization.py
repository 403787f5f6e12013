"""Quantization without publishing: tables and a report in a folder."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path

from torch import nn

from quant.report import CalibrationReport, QuantizationReport
from quant.sources.checkpoint import weights_of
from quant.sources.weight_source import SourceError, WeightSource
from sharded_infer.artifacts.manifest import REPORT_NAME, TableRecord
from sharded_infer.artifacts.report_file import dump_report
from sharded_infer.errors import StorageError, WeightsError
from sharded_infer.files.staged_folder import staged_folder, storage_errors
from sharded_infer.importing.id_maps.id_map_source import IdMapSource
from sharded_infer.importing.trained_tables import resolve_spec
from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.progress import Progress, no_progress
from sharded_infer.publishing.format_selection import FormatPlan, plan_formats
from sharded_infer.publishing.sampled_ids import mapped_samples
from sharded_infer.publishing.table_writer import WrittenTables, write_tables
from sharded_infer.quality.contributions import table_contributions
from sharded_infer.quality.fp32_model import Fp32Model, Mix
from sharded_infer.quality.quality import (
    CalibrationSamples,
    Scores,
    check_samples,
    compared_mixes,
    measure_quality,
)
from sharded_infer.quality.quality_gate import check_quality
from sharded_infer.specs.feature_statistics import FeatureStatistics
from sharded_infer.specs.model_spec import ModelSpec

TABLES_NAME = "tables.json"


def open_format_plan(
    spec: ModelSpec,
    weights: object,
    statistics: Mapping[str, FeatureStatistics] | None = None,
    progress: Progress = no_progress,
) -> FormatPlan:
    """Decide each table's storage, reading no more than needed; arguments as `publish`.

    Raises SpecError and WeightsError as `plan_formats`; or for unknown weights.
    """
    resolved, source = take_over(spec, weights)
    return plan_formats(resolved, source, statistics, progress)


def take_over(spec: ModelSpec, weights: object) -> tuple[ModelSpec, WeightSource]:
    """The weights as a source, and the spec completed from their modules.

    Raises SpecError as `resolve_spec`, WeightsError for unknown kinds of weights.
    """
    try:
        source = weights_of(weights)
    except SourceError as error:
        raise WeightsError(str(error)) from error
    return resolve_spec(spec, source), source


def quantize(
    plan: FormatPlan,
    out: Path,
    *,
    tower: nn.Module | None = None,
    calibration: CalibrationSamples | None = None,
    id_maps: Mapping[str, IdMapSource] | None = None,
    progress: Progress = no_progress,
) -> QuantizationReport:
    """Write a model's tables and their report into a new or empty folder `out`, atomically.

    It holds `tables/*.safetensors`, `tables.json` (the place of all rows, and every file's size and
    SHA-256, as in a manifest) and `report.json`. Calibration samples, scored with the trained and
    the stored rows, need `tower` (as trained) and `id_maps` (as for `publish`).

    Raises:
        SpecError: a table with raw ids has no id map; names it.
        RequestError: a calibration sample has an unknown id that its id map refuses.
        WeightsError: a row cannot be stored; names the table and the row.
        GateError: the calibration samples' scores differ by more than the spec allows.
        StorageError: `out` is not empty, or the disk is full.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise StorageError(f"{out}: is there already, expected a new or an empty folder")
    if calibration is not None:
        check_samples(plan.spec, calibration)
        mapped = mapped_samples(plan.spec, calibration.model_input, id_maps or {})
        calibration = replace(calibration, model_input=mapped)
    with storage_errors(out), staged_folder(out.parent) as staged:
        tables = write_tables(staged, plan, progress)
        report = quantization_report(plan, tables)
        if calibration is not None and tower is not None:
            measured = calibrate(plan, tower, calibration, None, progress)
            check_quality(plan.spec.gate, measured, plan.spec.name)
            report = replace(report, calibration=measured)
        fields = {
            "model": plan.spec.name,
            "tables": [asdict(record) for record in table_records(plan, tables)],
            "files": {name: asdict(record) for name, record in tables.files.items()},
        }
        (staged / TABLES_NAME).write_text(json.dumps(fields, indent=1) + "\n")
        write_report(staged, report)
        if out.exists():
            out.rmdir()
        staged.rename(out)
    return report


def calibrate(
    plan: FormatPlan,
    tower: nn.Module,
    samples: CalibrationSamples,
    served: Callable[[ModelInput], Scores] | None,
    progress: Progress = no_progress,
) -> CalibrationReport:
    """Score samples as trained, as published, and in other formats with finite scores.

    `served` scores a batch as a server would; None uses the trained tower in fp32 and rows as they
    will be stored. `progress` is called with the samples scored.
    """
    model = Fp32Model(plan.spec, plan.weights, tower)
    published = published_mix(plan)
    mixes = {n: m for n, m in compared_mixes(plan.spec).items() if m != published}
    if served is None:
        mixes = {"published": published, **mixes}
        reports = measure_quality(model, samples, mixes, None, progress)
    else:
        reports = measure_quality(model, samples, mixes, ("published", served), progress)
    return CalibrationReport(
        samples=samples.model_input.batch_size,
        labelled=samples.labelled,
        mixes=(*reports[:2], *(r for r in reports[2:] if math.isfinite(r.max_score_diff))),
        contributions=table_contributions(model, published, samples.model_input),
    )


def published_mix(plan: FormatPlan) -> Mix:
    """The formats of a plan, as a mix."""
    formats = {table.name: table.row_format for table in plan.tables}
    return Mix(formats, plan.spec.quantization.clip)


def quantization_report(plan: FormatPlan, tables: WrittenTables) -> QuantizationReport:
    """The report of written tables, without calibration."""
    return QuantizationReport(plan.spec.name, tables.encoder, tuple(tables.reports), plan.budget)


def table_records(plan: FormatPlan, tables: WrittenTables) -> tuple[TableRecord, ...]:
    """The place of each table's rows, as in a manifest."""
    return tuple(
        TableRecord(t.name, t.rows, t.dim, t.row_format, tuple(tables.pieces[t.name]))
        for t in plan.tables
    )


def write_report(folder: Path, report: QuantizationReport) -> str:
    """Write the report; return the file's name."""
    (folder / REPORT_NAME).write_bytes(dump_report(report))
    return REPORT_NAME
