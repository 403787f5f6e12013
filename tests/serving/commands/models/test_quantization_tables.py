import json
from dataclasses import replace

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
from serving.commands.console import OUT
from serving.commands.models.quantization_tables import render_report
from sharded_infer.errors import ArtifactError

ADS = TableReport(
    name="ads",
    row_format=RowFormat.INT4,
    rows=1000,
    dim=16,
    fp32_bytes=64_000,
    stored_bytes=12_000,
    mean_squared_error=0.0036 * 0.01,
    minmax_mean_squared_error=0.0049 * 0.01,
    max_abs_error=0.0123,
    mean_square=0.01,
    zeroed=0,
    row_errors=ErrorHistogram((0.01, 0.1, 1.0), (999, 1)),
    reason="the model's default",
)
COUNTRY = replace(
    ADS,
    name="country",
    row_format=RowFormat.FP32,
    stored_bytes=64_000,
    mean_squared_error=0.0,
    minmax_mean_squared_error=None,
    max_abs_error=0.0,
    reason="the spec names it",
)
PLAIN = QuantizationReport("click", "native avx2", (ADS, COUNTRY))
CALIBRATION = CalibrationReport(
    samples=5000,
    labelled=5000,
    mixes=(
        MixReport("fp32", 128_000, 0.0, 0.0, 0.0, 0.8, 0.45),
        MixReport("published", 76_000, 0.00021, 0.00084, 0.0023, 0.79996, 0.45002),
    ),
    contributions=tuple(TableContribution(f"t{i}", 0.1 / (i + 1), 0.5) for i in range(20)),
)


@pytest.fixture(autouse=True)
def piped(monkeypatch: pytest.MonkeyPatch) -> None:
    # pytest-xdist sets 80, which would cut tables.
    monkeypatch.delenv("COLUMNS", raising=False)


def printed(report: QuantizationReport) -> str:
    with OUT.capture() as capture:
        for part in render_report(json.loads(json.dumps(report.fields()))):
            OUT.print(part)
    return capture.get()


def cells(text: str, name: str) -> list[str]:
    (line,) = (line for line in text.splitlines() if line.startswith(f"│ {name} "))
    return [cell.strip() for cell in line.strip("│").split("│")]


def test_every_table_has_its_format_sizes_errors_and_reason() -> None:
    text = printed(PLAIN)
    assert "click, rows encoded by native avx2" in text
    figures = "ads|int4|64.0 kB|12.0 kB|6.00%|7.00%|0.0123|the model's default"
    assert cells(text, "ads") == figures.split("|")
    assert cells(text, "country")[4:7] == ["exact", "", "0"]
    assert cells(text, "all")[2:4] == ["128 kB", "76.0 kB"]
    assert "zeroed" not in text and "budget" not in text and "AUC" not in text


def test_columns_without_figures_are_left_out() -> None:
    text = printed(replace(PLAIN, tables=(COUNTRY,)))
    assert "min-max" not in text and "│ all " not in text
    zeroed = printed(replace(PLAIN, tables=(replace(ADS, zeroed=7),)))
    assert "zeroed" in zeroed and "7" in cells(zeroed, "ads")


def test_calibration_tells_mixes_and_contributions() -> None:
    text = printed(replace(PLAIN, calibration=CALIBRATION))
    assert "5,000 calibration samples" in text
    figures = "0.00021 0.00084 0.0023 0.79996 \N{MINUS SIGN}0.00004 0.45002 +0.00002"
    assert cells(text, "published") == ["published", "76.0 kB", *figures.split()]
    assert cells(text, "t0")[1:] == ["0.1000", "0.50"] and "and 8 more" in text


def test_calibration_without_labels_has_no_quality() -> None:
    mixes = tuple(replace(mix, auc=None, log_loss=None) for mix in CALIBRATION.mixes)
    text = printed(replace(PLAIN, calibration=replace(CALIBRATION, mixes=mixes)))
    assert "AUC" not in text and "log loss" not in text and "mean diff" in text


@pytest.mark.parametrize(
    ("kind", "limit", "chosen", "other"),
    [
        ("memory", 80_000.0, ["76.0 kB", "95.0%"], ["0.00500", ""]),
        ("error", 0.01, ["0.00500", "50.0%"], ["76.0 kB", ""]),
    ],
)
def test_budget_says_limit_chosen_and_least(
    kind: str, limit: float, chosen: list[str], other: list[str]
) -> None:
    budget = BudgetReport(kind, limit, 76_000, 0.005, 40_000, 0.001, 128)
    text = printed(replace(PLAIN, budget=budget))
    assert f"budget of {kind}" in text
    assert cells(text, "chosen")[1:] == chosen
    assert cells(text, "expected loss" if kind == "memory" else "size")[1:] == other
    assert cells(text, "limit")[2] == "100%" and cells(text, "least possible")[2]


def test_names_are_neither_markup_nor_commands_of_the_terminal() -> None:
    hostile = replace(ADS, name="[bold]x[/nope]\x1b[31m\u202e", reason="[link=x]\x07")
    text = printed(replace(PLAIN, tables=(hostile,), model="[red]m\x1b"))
    assert "[bold]x[/nope]\ufffd[31m\ufffd" in text and "[link=x]\ufffd" in text
    assert "[red]m\ufffd" in text and "\x1b" not in text and "\u202e" not in text


def test_what_is_no_report_is_refused() -> None:
    with pytest.raises(ArtifactError, match="report.json: tables: Field required"):
        render_report({"model": "x", "encoder": "y"})
