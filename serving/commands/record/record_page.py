"""Figures of a recording as one self-contained HTML page."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from kernels.wording import counted
from serving.commands.record.record_figures import ScoreFigures, Spread, VersionFigures
from sharded_infer.reports.html.charts import bar_cell, chart_table, figure_cell, name_cell
from sharded_infer.reports.html.document import report_page, section
from sharded_infer.reports.html.text import escaped_name, number_text
from sharded_infer.reports.quantization.style import STYLE

_COLOUR = "int8"  # of bars
_SPREAD = ("#Least", "#Mean", "#p50", "#p99", "#Most")


def render_record_page(model: str, figures: Mapping[int, VersionFigures]) -> str:
    """A page of the figures of each version of a model."""
    requests = sum(own.requests for own in figures.values())
    samples = sum(own.samples for own in figures.values())
    first, last = min(f.first for f in figures.values()), max(f.last for f in figures.values())
    return report_page(
        title=f"Recorded requests of {escaped_name(model)}",
        summary=[f"{_time(first)} to {_time(last)} UTC."],
        figures=[
            ("Versions", f"{len(figures):,}"),
            ("Requests", f"{requests:,}"),
            ("Failed", f"{sum(own.failed for own in figures.values()):,}"),
            ("Samples", f"{samples:,}"),
            ("Unknown ids", f"{sum(own.ids_outside for own in figures.values()):,}"),
        ],
        sections=[_version_section(version, own) for version, own in figures.items()],
        style=STYLE,
        script="",
    )


def _version_section(version: int, own: VersionFigures) -> str:
    note = (
        f"{counted(own.requests, 'request', ',')}, {own.failed:,} failed, "
        f"{counted(own.samples, 'sample', ',')}, {own.ids_outside:,} unknown ids, "
        f"{_time(own.first)} to {_time(own.last)} UTC."
    )
    rows = [
        ("Seconds of a request", own.seconds),
        ("Samples of a request", own.sizes),
        *((f"ids of {name}, a sample", ids) for name, ids in own.ids.items()),
    ]
    table = chart_table(
        f"Requests of version {version}",
        ("", *_SPREAD),
        [(name_cell(name), *_spread_cells(spread)) for name, spread in rows],
    )
    scores = "\n".join(_scores(name, own, scores) for name, scores in own.scores.items())
    return section(f"Version {version}", note, f"{table}\n{scores}")


def _scores(name: str, own: VersionFigures, scores: ScoreFigures) -> str:
    words = [f"{scores.not_finite:,} not finite."] if scores.not_finite else []
    if scores.auc is not None:
        labelled = counted(own.labelled, "labelled sample", ",")
        words.append(f"AUC <b>{scores.auc:.5f}</b> of {labelled}.")
    if scores.spread is not None:
        words.append(f"Mean {number_text(scores.spread.mean)}.")
    title = f"<h3>Scores {escaped_name(name)}</h3>\n<p>{' '.join(words)}</p>\n"
    heads = ("From", "Scores", "#")
    return title + chart_table(f"Scores {escaped_name(name)}", heads, _bins(scores))


def _bins(scores: ScoreFigures) -> Iterator[tuple[str, str, str]]:
    highest = max(scores.counts, default=0) or 1
    for low, count in zip(scores.edges, scores.counts, strict=False):
        share = count / highest
        head = f'<th scope="row" class="keep">{number_text(low)}</th>'
        yield head, bar_cell([(_COLOUR, share)] if count else ()), figure_cell(f"{count:,}")


def _spread_cells(spread: Spread) -> Iterator[str]:
    for value in (spread.least, spread.mean, spread.p50, spread.p99, spread.most):
        yield figure_cell(number_text(value))


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
