"""The section of a quantization's page about scores of calibration samples."""

from collections.abc import Callable, Sequence

from kernels.wording import counted
from quant.report import CalibrationReport, MixReport, TableContribution
from sharded_infer.byte_sizes import size_text
from sharded_infer.reports.html.charts import (
    bar_cell,
    chart_table,
    empty_cell,
    figure_cell,
    name_cell,
)
from sharded_infer.reports.html.document import section
from sharded_infer.reports.html.scale import linear_scale, log_scale
from sharded_infer.reports.html.scatter import Axis, Point, scatter
from sharded_infer.reports.html.table import number_cell, sortable_table
from sharded_infer.reports.html.text import (
    column_text,
    escaped_name,
    percent_text,
    signed_text,
    tick_text,
)

_CONTRIBUTIONS = 20
_DECIMALS = 5  # decimals of AUC and log loss
_SMALLEST = 6  # maximum decimals of score differences
FP32, PUBLISHED = "fp32", "published"


def mix_named(calibration: CalibrationReport, name: str) -> MixReport | None:
    """The mix with this name, or None."""
    return next((mix for mix in calibration.mixes if mix.name == name), None)


def change(value: float | None, base: float | None) -> float | None:
    """`value - base`, or None if either is unknown."""
    return None if value is None or base is None else value - base


def scores_section(calibration: CalibrationReport) -> str:
    """Score differences and ranking quality of the mixes, and each table's contribution."""
    labels = f", {calibration.labelled:,} of them labelled" if calibration.labelled else ""
    note = (
        f"On {counted(calibration.samples, 'calibration sample', ',')}{labels}. Differences are "
        "absolute, from the scores of the trained fp32 model."
    )
    parts = [
        _mixes(calibration),
        _outputs(calibration),
        _charts(calibration),
        _contributions(calibration.contributions),
    ]
    return section("Scores", note, "\n".join(part for part in parts if part))


def _mixes(calibration: CalibrationReport) -> str:
    mixes, base = calibration.mixes, mix_named(calibration, FP32)
    size = base.table_bytes if base else 0
    heads = ["Mix", "#Size", "#Of fp32", "#Mean difference", "#99th percentile", "#Largest"]
    measures = [
        [getattr(mix, name) for mix in mixes]
        for name in ("mean_score_diff", "p99_score_diff", "max_score_diff")
    ]
    texts = [column_text(values, most=_SMALLEST) for values in measures]
    with_auc = any(mix.auc is not None for mix in mixes)
    with_loss = any(mix.log_loss is not None for mix in mixes)
    heads += ["#AUC", "#Change"] * with_auc + ["#Log loss", "#Change"] * with_loss
    rows = []
    for index, mix in enumerate(mixes):
        cells = [
            f'<th scope="row">{escaped_name(mix.name)}</th>',
            number_cell(size_text(mix.table_bytes), mix.table_bytes),
            number_cell(percent_text(mix.table_bytes / size) if size else "", mix.table_bytes),
        ]
        cells += [
            number_cell(text(values[index]), values[index])
            for text, values in zip(texts, measures, strict=True)
        ]
        for wanted, value, of_base in (
            (with_auc, mix.auc, base.auc if base else None),
            (with_loss, mix.log_loss, base.log_loss if base else None),
        ):
            if wanted:
                cells += _against(value, of_base, is_base=mix is base)
        rows.append(_marked(cells) if mix.name == PUBLISHED else cells)
    return sortable_table("Mixes of formats", heads, rows)


def _outputs(calibration: CalibrationReport) -> str:
    """Scores of the published mix by output; empty for a model with one output."""
    found = calibration.by_output
    if len(found) < 2:
        return ""
    heads = ["Output", "#Mean difference", "#99th percentile", "#Largest", "#Of magnitude"]
    measures = [
        [getattr(output, name) for output, _ in found]
        for name in ("mean_score_diff", "p99_score_diff", "max_score_diff")
    ]
    texts = [column_text(values, most=_SMALLEST) for values in measures]
    with_auc = any(output.auc is not None for output, _ in found)
    with_loss = any(output.log_loss is not None for output, _ in found)
    heads += ["#AUC", "#Change"] * with_auc + ["#Log loss", "#Change"] * with_loss
    rows = []
    for index, (output, trained) in enumerate(found):
        relative = output.relative_diff
        cells = [f'<th scope="row">{escaped_name(output.name)}</th>']
        cells += [
            number_cell(text(values[index]), values[index])
            for text, values in zip(texts, measures, strict=True)
        ]
        cells.append(number_cell("" if relative is None else percent_text(relative), relative or 0))
        cells += _against(output.auc, trained.auc, is_base=False) if with_auc else []
        cells += _against(output.log_loss, trained.log_loss, is_base=False) if with_loss else []
        rows.append(cells)
    note = "As published. The magnitude is the root mean square of the fp32 model's scores."
    title = f"<h3>By output</h3>\n<p>{note}</p>\n"
    return title + sortable_table("Scores by output", heads, rows)


def _against(value: float | None, base: float | None, *, is_base: bool) -> list[str]:
    if value is None:
        return [figure_cell("\N{EN DASH}"), figure_cell("")]
    difference = change(value, base)
    told = "" if difference is None or is_base else signed_text(difference, _DECIMALS)
    return [number_cell(f"{value:.{_DECIMALS}f}", value), number_cell(told, difference or 0.0)]


def _marked(cells: Sequence[str]) -> list[str]:
    """Make the first text of each cell bold, for the published mix."""
    return [cell.replace(">", "><b>", 1).replace("</t", "</b></t", 1) for cell in cells]


def _charts(calibration: CalibrationReport) -> str:
    """Charts of quality against size; empty if there is nothing to compare."""
    mixes = calibration.mixes
    if len(mixes) < 2 or not any(mix.max_score_diff for mix in mixes):
        return ""
    sizes = Axis(linear_scale([mix.table_bytes for mix in mixes]), _size, "Size of the tables")
    differences = [
        value for m in mixes for value in (m.mean_score_diff, m.p99_score_diff, m.max_score_diff)
    ]
    points = [
        Point(
            name=mix.name,
            x=mix.table_bytes,
            y=mix.p99_score_diff,
            reach=(mix.mean_score_diff, mix.max_score_diff) if mix.max_score_diff else None,
            marked=mix.name == PUBLISHED,
        )
        for mix in mixes
    ]
    axis = Axis(log_scale([value for value in differences if value > 0]), tick_text, "")
    drawn = _figure(
        "Score difference against size",
        "A dot is the 99th percentile; its line reaches from the mean to the largest.",
        points,
        (sizes, axis),
    )
    base = mix_named(calibration, FP32)
    changes = [(mix, change(mix.auc, base.auc if base else None)) for mix in mixes]
    points = [
        Point(name=mix.name, x=mix.table_bytes, y=value, marked=mix.name == PUBLISHED)
        for mix, value in changes
        if value is not None
    ]
    if len(points) > 1 and any(point.y for point in points):
        scale = linear_scale([point.y for point in points])
        axis = Axis(scale, _signed_tick(scale.ticks), "")
        drawn += _figure(
            "Change of AUC against size", "Against the fp32 model's.", points, (sizes, axis)
        )
    return f'<div class="pair">{drawn}</div>'


def _size(value: float) -> str:
    return size_text(value).replace(".0 ", " ").replace(".00 ", " ") if value else "0"


def _signed_tick(ticks: Sequence[float]) -> Callable[[float], str]:
    text = column_text(ticks, digits=1)
    return lambda value: text(value) if value <= 0 else f"+{text(value)}"


def _figure(title: str, caption: str, points: Sequence[Point], axes: tuple[Axis, Axis]) -> str:
    drawn = scatter(title, points, *axes)
    return f"<figure><figcaption><h3>{title}</h3><p>{caption}</p></figcaption>{drawn}</figure>"


def _contributions(contributions: Sequence[TableContribution]) -> str:
    if not contributions:
        return ""
    shown, left = contributions[:_CONTRIBUTIONS], contributions[_CONTRIBUTIONS:]
    full = max(c.mean_score_diff for c in shown) or 1.0
    mean = column_text((c.mean_score_diff for c in shown), most=_SMALLEST)
    largest = column_text((c.max_score_diff for c in shown), most=_SMALLEST)
    rows = [
        (
            name_cell(c.table),
            bar_cell([("int8", c.mean_score_diff / full)]),
            figure_cell(mean(c.mean_score_diff)),
            figure_cell(largest(c.max_score_diff)),
        )
        for c in shown
    ]
    if left:
        more = f'<th scope="row" class="more">and {len(left):,} more, each at most</th>'
        most = max(c.mean_score_diff for c in left), max(c.max_score_diff for c in left)
        rows.append((more, empty_cell(), figure_cell(mean(most[0])), figure_cell(largest(most[1]))))
    heads = ("Table", "Mean difference", "#Mean", "#Largest")
    note = "Score differences when this table alone is stored as published, all others as fp32."
    title = f"<h3>Where the differences come from</h3>\n<p>{note}</p>\n"
    return title + chart_table("Contributions by table", heads, rows)
