"""Prints `report.json` as tables."""

from collections.abc import Mapping, Sequence

from rich.console import RenderableType
from rich.table import Table

from quant.report import OutputReport
from serving.commands.console import figure_table
from sharded_infer.artifacts.report_file import (
    BudgetReport,
    CalibrationReport,
    MixReport,
    QuantizationReport,
    TableContribution,
    import_text,
    report_from_fields,
)
from sharded_infer.byte_sizes import size_text
from sharded_infer.reports.html.text import (
    column_text,
    number_text,
    percent_text,
    shortened,
    signed_text,
)
from sharded_infer.reports.quantization.table_errors import (
    UNKNOWN,
    error_text,
    minmax_error,
    relative_error,
)

_CONTRIBUTIONS = 12  # on the terminal; the page has more, and the file all
_DECIMALS = 5  # of areas under curves and of log losses
_SMALLEST = 6  # decimals of score differences at most
_NAME_CHARACTERS = 60
_LEFT = {"table", "format", "mix", "output", "reason", "what"}

_Measured = MixReport | OutputReport


def render_report(fields: Mapping[str, object]) -> list[RenderableType]:
    """Tables of model, import, samples and budget; ArtifactError if it is not a report."""
    report = report_from_fields(fields)
    parts: list[RenderableType] = [_tables(report), import_text(report.imported)]
    if report.calibration is not None:
        parts.append(_mixes(report.calibration))
        if len(report.calibration.by_output) > 1:
            parts.append(_outputs(report.calibration))
        if report.calibration.contributions:
            parts.append(_contributions(report.calibration.contributions))
    if report.budget is not None:
        parts.append(_budget(report.budget))
    return parts


def _tables(report: QuantizationReport) -> Table:
    zeroed = any(table.zeroed for table in report.tables)
    searched = any(table.minmax_mean_squared_error is not None for table in report.tables)
    headings = ["table", "format", "fp32", "stored", "error"]
    headings += ["min-max's"] * searched + ["max error"] + ["zeroed"] * zeroed + ["reason"]
    table = _table(f"{report.model}, rows encoded by {report.encoder}", headings)
    for one in report.tables:
        cells = [_name(one.name), one.row_format, size_text(one.fp32_bytes)]
        cells += [size_text(one.stored_bytes), error_text(relative_error(one))]
        if searched:
            known = one.minmax_mean_squared_error is not None
            cells.append(error_text(minmax_error(one)) if known else "")
        cells.append(number_text(one.max_abs_error))
        if zeroed:
            cells.append(f"{one.zeroed:,}")
        table.add_row(*cells, one.reason)
    if len(report.tables) > 1:
        before = sum(one.fp32_bytes for one in report.tables)
        after = sum(one.stored_bytes for one in report.tables)
        table.add_section()
        table.add_row("all", "", size_text(before), size_text(after))
    return table


def _mixes(calibration: CalibrationReport) -> Table:
    mixes = calibration.mixes
    base = next((mix for mix in mixes if mix.name == "fp32"), None)
    measures = [
        [getattr(mix, name) for mix in mixes]
        for name in ("mean_score_diff", "p99_score_diff", "max_score_diff")
    ]
    texts = [column_text(values, most=_SMALLEST) for values in measures]
    quality, changes = _quality([(mix, base) for mix in mixes])
    table = _table(
        f"score differences from fp32, {calibration.samples:,} calibration samples",
        ["mix", "size", "mean diff", "p99 diff", "max diff", *quality],
    )
    for index, mix in enumerate(mixes):
        cells = [_name(mix.name), size_text(mix.table_bytes)]
        cells += [text(values[index]) for text, values in zip(texts, measures, strict=True)]
        table.add_row(*cells, *changes[index], style="bold" if mix.name == "published" else None)
    return table


def _outputs(calibration: CalibrationReport) -> Table:
    quality, changes = _quality(calibration.by_output)
    table = _table(
        "as published, by output; magnitude: root mean square of fp32 scores",
        ["output", "mean diff", "p99 diff", "max diff", "of magnitude", *quality],
    )
    for (output, _), change in zip(calibration.by_output, changes, strict=True):
        relative = output.relative_diff
        table.add_row(
            _name(output.name),
            number_text(output.mean_score_diff),
            number_text(output.p99_score_diff),
            number_text(output.max_score_diff),
            UNKNOWN if relative is None else percent_text(relative),
            *change,
        )
    return table


def _quality(
    measured: Sequence[tuple[_Measured, _Measured | None]],
) -> tuple[list[str], list[list[str]]]:
    """Headings and cells of known AUCs and log losses, with their changes from fp32's."""
    headings: list[str] = []
    rows: list[list[str]] = [[] for _ in measured]
    for heading, name in (("AUC", "auc"), ("log loss", "log_loss")):
        values = [(getattr(one, name), getattr(base, name, None)) for one, base in measured]
        if any(value is not None for value, _ in values):
            headings += [heading, "change"]
            for row, (value, base) in zip(rows, values, strict=True):
                row.append(UNKNOWN if value is None else f"{value:.{_DECIMALS}f}")
                known = value is not None and base is not None
                row.append(signed_text(value - base, _DECIMALS) if known else "")
    return headings, rows


def _contributions(contributions: Sequence[TableContribution]) -> Table:
    shown = contributions[:_CONTRIBUTIONS]
    mean = column_text((c.mean_score_diff for c in shown), most=_SMALLEST)
    largest = column_text((c.max_score_diff for c in shown), most=_SMALLEST)
    title = "score differences by table, all others as fp32"
    table = _table(title, ["table", "mean diff", "max diff"])
    for one in shown:
        table.add_row(_name(one.table), mean(one.mean_score_diff), largest(one.max_score_diff))
    if left := len(contributions) - len(shown):
        table.add_section()
        table.add_row(f"and {left:,} more", "", "")
    return table


def _budget(budget: BudgetReport) -> Table:
    memory = budget.kind == "memory"
    text = size_text if memory else number_text
    used, least = (budget.bytes, budget.least_bytes) if memory else (budget.loss, budget.least_loss)
    table = _table(f"budget of {budget.kind}", ["what", "bytes" if memory else "loss", "of limit"])
    for what, value in (("limit", budget.limit), ("chosen", used), ("least possible", least)):
        share = percent_text(value / budget.limit) if budget.limit else ""
        table.add_row(what, text(value), share)
    other = (
        ("expected loss", number_text(budget.loss)) if memory else ("size", size_text(budget.bytes))
    )
    table.add_row(*other, "")
    return table


def _table(title: str, headings: Sequence[str]) -> Table:
    table = figure_table(title, headings, left=_LEFT, overflow="fold")
    for column in table.columns:
        column.no_wrap = column.header not in {"table", "reason"}
    return table


def _name(name: str) -> str:
    return shortened(name, _NAME_CHARACTERS)
