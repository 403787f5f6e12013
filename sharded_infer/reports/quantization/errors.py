"""The section of a quantization's page about errors, by table and by row."""

from collections import defaultdict
from collections.abc import Sequence
from statistics import median

from kernels.row_format import RowFormat
from kernels.wording import counted
from quant.report import TableReport
from sharded_infer.reports.html.charts import (
    axis_row,
    chart_table,
    dot_cell,
    empty_cell,
    figure_cell,
    format_cell,
    name_cell,
    ticks_cell,
)
from sharded_infer.reports.html.document import section
from sharded_infer.reports.html.histogram import Multiple, has_errors, small_multiples
from sharded_infer.reports.html.scale import Scale, log_scale
from sharded_infer.reports.html.text import percent_text, percent_tick
from sharded_infer.reports.quantization.table_errors import (
    error_text,
    gain_text,
    minmax_error,
    relative_error,
)

_SHOWN = 40
_HISTOGRAMS = 24


def errors_section(tables: Sequence[TableReport]) -> str:
    """Errors relative to the weights, by table and by row."""
    ordered = sorted(tables, key=lambda t: (-(relative_error(t) or 0.0), t.name))
    inexact = [t for t in ordered if relative_error(t)]
    if not inexact:
        return section("Error", "Every table is stored exactly.", "")
    note = "Root mean square error of a table's elements, relative to their root mean square."
    if len(tables) == 1:
        return section("Error", f"{note} {_alone(tables[0])}", _by_row(inexact))
    # One extra row is shown as well, because "and 1 more" would take the same space.
    shown = inexact if len(inexact) <= _SHOWN + 1 else inexact[:_SHOWN]
    left = inexact[len(shown) :]
    parts = []
    if left:
        parts.append(_by_format(inexact))
    parts.append(_by_table(shown, left, len(ordered) - len(inexact)))
    parts.append(_by_row(inexact))
    return section("Error", note, "\n".join(parts))


def _alone(table: TableReport) -> str:
    text = f"It is <b>{error_text(relative_error(table))}</b>"
    if not (before := minmax_error(table)):
        return f"{text}."
    return f"{text}; min-max ranges would give {error_text(before)} ({gain_text(table)})."


def _by_format(tables: Sequence[TableReport]) -> str:
    errors: defaultdict[RowFormat, list[float]] = defaultdict(list)
    for table in tables:
        errors[table.row_format].append(relative_error(table) or 0.0)
    scale = log_scale(error for found in errors.values() for error in found)
    rows = [
        (
            f'<th scope="row" class="keep"><i class="{f}"></i>{f}</th>',
            ticks_cell(scale, f, errors[f], median(errors[f])),
            figure_cell(f"{len(errors[f]):,}"),
            figure_cell(percent_text(min(errors[f]))),
            figure_cell(percent_text(median(errors[f]))),
            figure_cell(percent_text(max(errors[f]))),
        )
        for f in RowFormat
        if f in errors
    ]
    heads = ("Format", "A line a table, a dot at the median", "#Tables", "#Least")
    foot = axis_row(scale, percent_tick, before=1, after=4)
    title = "<h3>By format</h3>\n"
    return title + chart_table("Error by format", (*heads, "#Median", "#Largest"), rows, foot)


def _by_table(shown: Sequence[TableReport], left: Sequence[TableReport], exact: int) -> str:
    searched = any(minmax_error(table) for table in shown)
    values = [relative_error(table) or 0.0 for table in shown]
    scale = log_scale([*values, *(e for t in shown if (e := minmax_error(t)))])
    rows = [_row(table, scale, searched=searched) for table in shown]
    blank = [figure_cell("")] * (2 * searched)
    if left:
        most = figure_cell(percent_text(relative_error(left[0]) or 0.0))
        rows.append(
            (_more(f"and {len(left):,} more, each at most"), empty_cell(scale), most, *blank)
        )
    if exact:
        text = f"and {exact:,} stored exactly" if exact > 1 else "and one stored exactly"
        rows.append((_more(text), empty_cell(scale), figure_cell("exact"), *blank))
    drawing = "A dot is the error" + ", a ring what min-max ranges would give" * searched
    heads = ["Table", "Format", drawing, "#Error", *(["#Min-max", "#Change"] * searched)]
    foot = axis_row(scale, percent_tick, before=2, after=1 + 2 * searched)
    note = "The worst first."
    if searched:
        note += " Where ranges are searched, the change is of the error against min-max ranges."
    table = chart_table("Error by table", heads, rows, foot)
    return f"<h3>By table</h3>\n<p>{note}</p>\n{table}"


def _more(text: str) -> str:
    return f'<th scope="row" class="more" colspan="2">{text}</th>'


def _row(table: TableReport, scale: Scale, *, searched: bool) -> tuple[str, ...]:
    error, before = relative_error(table) or 0.0, minmax_error(table)
    cells = (
        name_cell(table.name),
        format_cell(table.row_format),
        dot_cell(scale, table.row_format, error, before or None),
        figure_cell(f"<b>{error_text(error)}</b>"),
    )
    if not searched:
        return cells
    minmax = "" if before is None else error_text(before)
    return (*cells, figure_cell(minmax), figure_cell(gain_text(table)))


def _by_row(tables: Sequence[TableReport]) -> str:
    drawable = [table for table in tables if has_errors(table.row_errors)]
    shown = drawable[:_HISTOGRAMS]
    if not shown:
        return ""
    note = "How many rows have which error relative to the row"
    note += ", on one scale for all." if len(shown) > 1 else "."
    if len(shown) < len(drawable):
        note += f" The worst {len(shown)} of {counted(len(drawable), 'table', ',')}."
    drawn = small_multiples([Multiple(t.name, t.row_format, t.row_errors) for t in shown])
    return f"<h3>By row</h3>\n<p>{note}</p>\n{drawn}"
