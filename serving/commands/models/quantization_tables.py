"""Prints `report.json` as tables."""

from collections.abc import Mapping, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from sharded_infer.artifacts.report_file import (
    BudgetReport,
    CalibrationReport,
    QuantizationReport,
    TableContribution,
    TableReport,
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
    visible,
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


def render_report(fields: Mapping[str, object]) -> list[RenderableType]:
    """Tables of model, import, samples and budget; ArtifactError if it is not a report."""
    report = report_from_fields(fields)
    parts: list[RenderableType] = [_tables(report), Text(visible(import_text(report.imported)))]
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
        cells: list[RenderableType] = [
            _name(one.name),
            Text(one.row_format),
            size_text(one.fp32_bytes),
            size_text(one.stored_bytes),
            error_text(relative_error(one)),
        ]
        if searched:
            cells.append(_minmax(one))
        cells.append(number_text(one.max_abs_error))
        if zeroed:
            cells.append(f"{one.zeroed:,}")
        table.add_row(*cells, Text(visible(one.reason)))
    if len(report.tables) > 1:
        before = sum(one.fp32_bytes for one in report.tables)
        after = sum(one.stored_bytes for one in report.tables)
        table.add_section()
        table.add_row("all", "", size_text(before), size_text(after))
    return table


def _minmax(table: TableReport) -> str:
    if table.minmax_mean_squared_error is None:
        return ""
    return error_text(minmax_error(table))


def _mixes(calibration: CalibrationReport) -> Table:
    mixes = calibration.mixes
    base = next((mix for mix in mixes if mix.name == "fp32"), None)
    measures = [
        [getattr(mix, name) for mix in mixes]
        for name in ("mean_score_diff", "p99_score_diff", "max_score_diff")
    ]
    texts = [column_text(values, most=_SMALLEST) for values in measures]
    with_auc = any(mix.auc is not None for mix in mixes)
    with_loss = any(mix.log_loss is not None for mix in mixes)
    headings = ["mix", "size", "mean diff", "p99 diff", "max diff"]
    headings += ["AUC", "change"] * with_auc + ["log loss", "change"] * with_loss
    table = _table(
        f"score differences from fp32, {calibration.samples:,} calibration samples", headings
    )
    for index, mix in enumerate(mixes):
        cells: list[RenderableType] = [_name(mix.name), size_text(mix.table_bytes)]
        cells += [text(values[index]) for text, values in zip(texts, measures, strict=True)]
        if with_auc:
            cells += _against(mix.auc, base.auc if base else None)
        if with_loss:
            cells += _against(mix.log_loss, base.log_loss if base else None)
        table.add_row(*cells, style="bold" if mix.name == "published" else None)
    return table


def _outputs(calibration: CalibrationReport) -> Table:
    found = calibration.by_output
    with_auc = any(output.auc is not None for output, _ in found)
    with_loss = any(output.log_loss is not None for output, _ in found)
    headings = ["output", "mean diff", "p99 diff", "max diff", "of magnitude"]
    headings += ["AUC", "change"] * with_auc + ["log loss", "change"] * with_loss
    table = _table("as published, by output; magnitude: root mean square of fp32 scores", headings)
    for output, trained in found:
        relative = output.relative_diff
        cells: list[RenderableType] = [
            _name(output.name),
            number_text(output.mean_score_diff),
            number_text(output.p99_score_diff),
            number_text(output.max_score_diff),
            UNKNOWN if relative is None else percent_text(relative),
        ]
        if with_auc:
            cells += _against(output.auc, trained.auc)
        if with_loss:
            cells += _against(output.log_loss, trained.log_loss)
        table.add_row(*cells)
    return table


def _against(value: float | None, base: float | None) -> tuple[str, str]:
    if value is None:
        return UNKNOWN, ""
    change = "" if base is None else signed_text(value - base, _DECIMALS)
    return f"{value:.{_DECIMALS}f}", change


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
    # Texts, not strings: brackets in names are not markup.
    table = Table(title=Text(visible(title)), title_justify="left")
    for heading in headings:
        left = heading in _LEFT
        table.add_column(
            heading,
            justify="left" if left else "right",
            no_wrap=heading not in {"table", "reason"},
            overflow="fold",
        )
    return table


def _name(name: str) -> Text:
    return Text(visible(shortened(name, _NAME_CHARACTERS)))
