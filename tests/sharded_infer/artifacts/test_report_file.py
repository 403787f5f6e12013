import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kernels.row_format import RowFormat
from quant.report import (
    BudgetReport,
    CalibrationReport,
    ErrorHistogram,
    MixReport,
    QuantizationReport,
    TableContribution,
    TableReport,
)
from sharded_infer.artifacts.report_file import dump_report, report_from_fields
from sharded_infer.errors import ArtifactError

TABLE = TableReport(
    name="ads",
    row_format=RowFormat.INT4,
    rows=10,
    dim=4,
    fp32_bytes=160,
    stored_bytes=60,
    mean_squared_error=1e-5,
    minmax_mean_squared_error=2e-5,
    max_abs_error=0.01,
    mean_square=0.1,
    zeroed=0,
    row_errors=ErrorHistogram((0.0, 0.1, 1.0), (9, 1)),
    reason="the model's default",
)
REPORT = QuantizationReport(
    model="small",
    encoder="torch",
    tables=(
        TABLE,
        replace(TABLE, name="\u202e", row_format=RowFormat.FP8, minmax_mean_squared_error=None),
    ),
    budget=BudgetReport("memory", 200.0, 120, 0.01, 100, 0.001, 10),
    calibration=CalibrationReport(
        samples=5,
        labelled=0,
        mixes=(MixReport("fp32", 160, 0.0, 0.0, 0.0, None, None),),
        contributions=(TableContribution("ads", 0.1, 0.2),),
    ),
)


@pytest.mark.parametrize(
    "report", [REPORT, replace(REPORT, budget=None, calibration=None), replace(REPORT, tables=())]
)
def test_reports_are_read_as_they_were_written(report: QuantizationReport) -> None:
    text = dump_report(report)
    assert text.endswith(b"}\n") and text.startswith(b'{\n "model": "small",\n')
    assert report_from_fields(json.loads(text)) == report
    assert dump_report(report_from_fields(json.loads(text))) == text


Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.pop("encoder"), "encoder: Field required"),
        (lambda f: f["tables"][1].pop("dim"), r"tables\.1\.dim: Field required"),
        (lambda f: f["tables"][0].update(rows="10"), r"tables\.0\.rows: .*, got '10'"),
        (lambda f: f["tables"][0].update(rows=-1), r"tables\.0\.rows: expected .* from 0, got -1"),
        (lambda f: f["tables"][0].update(row_format="int3"), r"tables\.0\.row_format: .*'int3'"),
        (lambda f: f["tables"][0].update(mean_square=math.nan), r"tables\.0\.mean_square"),
        (lambda f: f["tables"][0]["row_errors"].update(counts=[1]), r"tables\.0\.row_errors: .* 3"),
        (lambda f: f["tables"][0].update(extra=1), r"tables\.0\.extra: expected no such field"),
        (lambda f: f.update({"budget.kind": "x"}), r"budget\.kind: expected no such field"),
        (lambda f: f.update(extra={}), "extra: expected no such field"),
        (lambda f: f["calibration"]["mixes"][0].update(auc="high"), r"calibration\.mixes\.0\.auc"),
    ],
)
def test_wrong_fields_are_refused_by_file_and_place(change: Change, message: str) -> None:
    fields = json.loads(dump_report(REPORT))
    change(fields)
    with pytest.raises(ArtifactError, match=f"^v7/report.json: {message}"):
        report_from_fields(fields, "v7/report.json")


@pytest.mark.parametrize("fields", [[], "text", None, 5, {"model": object()}])
def test_what_is_no_object_is_refused(fields: Any) -> None:
    with pytest.raises(ArtifactError, match="^report.json: "):
        report_from_fields(fields)
