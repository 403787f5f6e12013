"""The effects of a quantization on one deterministic, self-contained page."""

from collections.abc import Sequence

from kernels.wording import counted
from quant.report import (
    CalibrationReport,
    QuantizationReport,
    TableReport,
    import_text,
    total_bytes,
)
from sharded_infer.byte_sizes import size_text
from sharded_infer.reports.html.document import report_page, section
from sharded_infer.reports.html.table import long_text, number_cell, sortable_table
from sharded_infer.reports.html.text import (
    escaped,
    escaped_name,
    number_text,
    signed_text,
)
from sharded_infer.reports.quantization.errors import errors_section
from sharded_infer.reports.quantization.scores import (
    FP32,
    PUBLISHED,
    change,
    mix_named,
    scores_section,
)
from sharded_infer.reports.quantization.sizes import budget_section, ratio_text, sizes_section
from sharded_infer.reports.quantization.style import FIND_SCRIPT, STYLE
from sharded_infer.reports.quantization.table_errors import error_text, mean_error, relative_error

_TABLE_BYTES = 1_300_000  # limit for the table of all tables, which keeps the page below 2 MB
_SEEN = 8  # with more tables than this, the page has a search field
_DECIMALS = 5  # decimals of AUC


def render_quantization_page(report: QuantizationReport) -> str:
    """A page that explains a quantization to a modeller.

    Returns:
        HTML that needs no other files and no network.
    """
    sections = [sizes_section(report.tables)]
    if report.calibration is not None:
        sections.append(scores_section(report.calibration))
    sections.append(errors_section(report.tables))
    if report.budget is not None:
        sections.append(budget_section(report.budget))
    return report_page(
        title=f"Quantization of {escaped_name(report.model)}",
        summary=[_verdict(report), escaped(_sentence(import_text(report.imported)))],
        figures=_figures(report),
        sections=[*sections, _choice_section(report)],
        style=STYLE,
        script=FIND_SCRIPT,
    )


def _verdict(report: QuantizationReport) -> str:
    size = _size_sentence(report.tables)
    if report.calibration is None:
        return size + _unmeasured(report.tables)
    published = mix_named(report.calibration, PUBLISHED)
    if published is None:
        return size + _unmeasured(report.tables)
    if not published.max_score_diff:
        return f"{size}No score of {_samples(report.calibration)} changes."
    scores = (
        f"Scores of {_samples(report.calibration)} differ by "
        f"<b>{number_text(published.mean_score_diff, 2)}</b> on average and by "
        f"<b>{number_text(published.max_score_diff, 2)}</b> at most"
    )
    base = mix_named(report.calibration, FP32)
    difference = change(published.auc, base.auc if base else None)
    if difference is None or base is None or base.auc is None or published.auc is None:
        return f"{size}{scores}."
    if not round(difference, _DECIMALS):
        return f"{size}{scores}; AUC stays at <b>{published.auc:.{_DECIMALS}f}</b>."
    return (
        f"{size}{scores}; AUC goes from {base.auc:.{_DECIMALS}f} to "
        f"{published.auc:.{_DECIMALS}f} (<b>{signed_text(difference, _DECIMALS)}</b>)."
    )


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _size_sentence(tables: Sequence[TableReport]) -> str:
    before, after = total_bytes(tables)
    subject, ending = counted(len(tables), "table", ","), "s" * (len(tables) == 1)
    if before == after:
        return f"{subject} stay{ending} at <b>{size_text(after)}</b>. "
    smaller = after < before
    times = ratio_text(before, after) if smaller else ratio_text(after, before)
    return (
        f"{subject} go{'e' * bool(ending)}{ending} from <b>{size_text(before)}</b> to "
        f"<b>{size_text(after)}</b>, {times} {'smaller' if smaller else 'larger'}. "
    )


def _samples(calibration: CalibrationReport) -> str:
    return counted(calibration.samples, "calibration sample", ",")


def _unmeasured(tables: Sequence[TableReport]) -> str:
    text = "What that does to scores was not measured: no calibration samples were given."
    worst = max(tables, key=lambda t: relative_error(t) or 0.0, default=None)
    error = relative_error(worst) if worst else None
    if worst is None or not error:
        return f"Every table is stored exactly. {text}"
    return (
        f"{text} The largest error of a table is <b>{error_text(error)}</b> of its weights, of "
        f"{escaped_name(worst.name)} ({worst.row_format})."
    )


def _figures(report: QuantizationReport) -> list[tuple[str, str]]:
    tables = report.tables
    before, after = total_bytes(tables)
    elements = sum(table.rows * table.dim for table in tables)
    pairs = [
        ("As fp32", size_text(before)),
        ("Stored", size_text(after)),
        ("Smaller", ratio_text(before, after)),
        ("Bits an element", f"{8 * after / elements:.2f}" if elements else "\N{EN DASH}"),
        ("Overall error", error_text(mean_error(tables))),
    ]
    if len(tables) > 1:
        worst = max(relative_error(table) or 0.0 for table in tables)
        pairs.append(("Worst error", error_text(worst)))
    if zeroed := sum(table.zeroed for table in tables):
        pairs.append(("Stored as 0", f"{zeroed:,}"))
    return pairs + _score_figures(report.calibration)


def _score_figures(calibration: CalibrationReport | None) -> list[tuple[str, str]]:
    published = mix_named(calibration, PUBLISHED) if calibration else None
    if calibration is None or published is None:
        return []
    pairs = [("Max score diff.", number_text(published.max_score_diff, 2))]
    base = mix_named(calibration, FP32)
    difference = change(published.auc, base.auc if base else None)
    if difference is not None:
        pairs.append(("AUC change", signed_text(difference, _DECIMALS)))
    return pairs


def _choice_section(report: QuantizationReport) -> str:
    tables = report.tables
    zeroed = any(table.zeroed for table in tables)
    rows: dict[str, tuple[str, ...]] = {}
    written = 0
    for table in sorted(tables, key=lambda t: (-t.fp32_bytes, t.name)):
        rows[table.name] = _row(table, zeroed=zeroed)
        written += sum(len(cell.encode()) for cell in rows[table.name])
        if written > _TABLE_BYTES:
            break
    shown = [rows[table.name] for table in tables if table.name in rows]
    note = "Every table, how it is stored, and why."
    if len(shown) < len(tables):
        note = (
            f"The largest {len(shown):,} of {counted(len(tables), 'table', ',')}; "
            "report.json has all."
        )
    note += f" Rows were encoded by {escaped(report.encoder)}."
    heads = ["Table", "#Rows", "#Dim", "Format", "#fp32", "#Stored", "#Error", "#Largest error"]
    heads += [*(["#Stored as 0"] * zeroed), "Reason"]
    # A short table needs no search field.
    find = (
        '<div class="find" hidden><label for="find">Find</label><input id="find" type="search" '
        'autocomplete="off" spellcheck="false"><output for="find"></output></div>'
    ) * (len(shown) > _SEEN)
    drawn = sortable_table("All tables", heads, shown)
    return section("Tables", note, f'{find}\n<div class="all">{drawn}</div>')


def _row(table: TableReport, *, zeroed: bool) -> tuple[str, ...]:
    error = relative_error(table)
    cells = [
        f'<th scope="row" class="name"><bdi>{escaped_name(table.name)}</bdi></th>',
        number_cell(f"{table.rows:,}", table.rows),
        number_cell(f"{table.dim:,}", table.dim),
        f"<td>{table.row_format}</td>",
        number_cell(size_text(table.fp32_bytes), table.fp32_bytes),
        number_cell(size_text(table.stored_bytes), table.stored_bytes),
        number_cell(error_text(error), error or 0.0),
        number_cell(number_text(table.max_abs_error), table.max_abs_error),
    ]
    if zeroed:
        cells.append(number_cell(f"{table.zeroed:,}", table.zeroed))
    return (*cells, f'<td class="text">{long_text(table.reason)}</td>')
