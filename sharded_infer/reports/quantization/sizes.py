"""The sections of a quantization's page about sizes and the budget."""

from collections import Counter
from collections.abc import Sequence

from kernels.row_format import RowFormat
from kernels.wording import counted
from quant.report import BudgetReport, TableReport, total_bytes
from sharded_infer.byte_sizes import size_text
from sharded_infer.reports.html.charts import (
    bar_cell,
    chart_table,
    empty_cell,
    figure_cell,
    format_cell,
    name_cell,
)
from sharded_infer.reports.html.document import section
from sharded_infer.reports.html.text import number_text, percent_text

_SHOWN = 40
TIMES = "\N{MULTIPLICATION SIGN}"


def ratio_text(before: float, after: float) -> str:
    """The ratio of two sizes as text."""
    return f"{before / after:.2f} {TIMES}" if after else "\N{EN DASH}"


def sizes_section(tables: Sequence[TableReport]) -> str:
    """Sizes before and after quantization, by row format and by table."""
    note = "Bytes of the tables' rows, as fp32 and as stored."
    return section("Size", note, f"{_legend(tables)}\n{_totals(tables)}\n{_by_table(tables)}")


def _legend(tables: Sequence[TableReport]) -> str:
    counts, stored = Counter[RowFormat](), Counter[RowFormat]()
    for table in tables:
        counts[table.row_format] += 1
        stored[table.row_format] += table.stored_bytes
    items = "".join(
        f'<li><i class="{f}"></i><span><b>{f}</b> {counted(counts[f], "table", ",")}, '
        f"{size_text(stored[f])}</span></li>"
        for f in RowFormat
        if counts[f]
    )
    return f'<ul class="legend" aria-label="Row formats">{items}</ul>'


def _totals(tables: Sequence[TableReport]) -> str:
    before, after = total_bytes(tables)
    full = max(before, after, 1)
    by_format = [
        (f, sum(t.stored_bytes for t in tables if t.row_format is f) / full) for f in RowFormat
    ]
    rows = (
        ('<th scope="row">fp32</th>', bar_cell((), before / full), figure_cell(size_text(before))),
        (
            '<th scope="row">stored</th>',
            bar_cell([part for part in by_format if part[1]], before / full),
            figure_cell(f"<b>{size_text(after)}</b>"),
        ),
    )
    heads = ("All tables", "", "#Size")
    return f'<div class="tall">{chart_table("Size of all tables", heads, rows)}</div>'


def _by_table(tables: Sequence[TableReport]) -> str:
    if len(tables) < 2:
        return ""
    ordered = sorted(tables, key=lambda t: (-t.fp32_bytes, t.name))
    # One extra row is shown as well, because "and 1 more" would take the same space.
    shown = ordered if len(ordered) <= _SHOWN + 1 else ordered[:_SHOWN]
    full = max(max(t.fp32_bytes, t.stored_bytes) for t in shown) or 1
    rows: list[tuple[str, ...]] = [
        (
            name_cell(table.name),
            format_cell(table.row_format),
            bar_cell([(table.row_format, table.stored_bytes / full)], table.fp32_bytes / full),
            *_figures(table.fp32_bytes, table.stored_bytes),
        )
        for table in shown
    ]
    if left := ordered[len(shown) :]:
        more = f'<th scope="row" class="more" colspan="2">and {len(left):,} more, together</th>'
        rows.append((more, empty_cell(), *_figures(*total_bytes(left))))
    heads = ("Table", "Format", "fp32 outlined, stored filled", "#fp32", "#Stored", "#Smaller")
    title = "<h3>By table</h3>\n<p>The largest first.</p>\n"
    return title + chart_table("Size by table", heads, rows)


def _figures(before: int, after: int) -> tuple[str, str, str]:
    sizes = (figure_cell(size_text(before)), figure_cell(size_text(after)))
    return (*sizes, figure_cell(ratio_text(before, after)))


def budget_section(budget: BudgetReport) -> str:
    """The budget, the chosen formats' use of it, and the least possible."""
    memory = budget.kind == "memory"
    text = size_text if memory else number_text
    chosen, least = (
        (budget.bytes, budget.least_bytes) if memory else (budget.loss, budget.least_loss)
    )
    full = max(budget.limit, chosen, least) or 1
    values = (("Limit", budget.limit), ("Chosen", chosen), ("Least possible", least))
    rows = [
        (
            f'<th scope="row" class="keep">{name}</th>',
            bar_cell(
                [("int8" if name == "Chosen" else "fp32", value / full)] if name != "Limit" else (),
                budget.limit / full,
            ),
            figure_cell(text(value)),
            figure_cell(percent_text(value / budget.limit) if budget.limit else ""),
        )
        for name, value in values
    ]
    what = "Bytes of all tables' rows" if memory else "Expected loss, relative to fp32"
    if memory:
        note = (
            f"The formats chosen take {size_text(budget.bytes)} of the {size_text(budget.limit)} "
            f"allowed; the expected relative loss is <b>{number_text(budget.loss)}</b>, that of "
            f"the most exact choice {number_text(budget.least_loss)}."
        )
    else:
        note = (
            f"The formats chosen lose {number_text(budget.loss)} of the "
            f"{number_text(budget.limit)} allowed and take <b>{size_text(budget.bytes)}</b>; the "
            f"smallest choice takes {size_text(budget.least_bytes)}."
        )
    note += f" Losses were measured on {counted(budget.sampled_rows, 'row', ',')}."
    heads = (what, "", "#", "#Of limit")
    return section("Budget", note, f'<div class="tall">{chart_table("Budget", heads, rows)}</div>')
