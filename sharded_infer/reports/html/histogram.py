"""Small histograms side by side on one logarithmic scale."""

from collections.abc import Sequence
from dataclasses import dataclass

from kernels.wording import counted
from quant.report import ErrorHistogram
from sharded_infer.reports.html.charts import axis
from sharded_infer.reports.html.scale import Scale, log_scale
from sharded_infer.reports.html.text import escaped, escaped_name, percent_text, percent_tick

_NAME_CHARACTERS = 26


@dataclass(frozen=True, slots=True)
class Multiple:
    """One histogram of several, with the CSS class of its colour."""

    name: str
    css: str
    rows: ErrorHistogram


def small_multiples(multiples: Sequence[Multiple]) -> str:
    """Draw histograms on one scale, which covers every non-empty bin except the first.

    The first bin starts at 0, which a logarithmic scale cannot show. Its rows are given as text.
    """
    reach = [
        edge
        for multiple in multiples
        for index, count in enumerate(multiple.rows.counts)
        if index and count
        for edge in multiple.rows.edges[index : index + 2]
    ]
    if not reach:
        return ""
    scale = log_scale(reach)
    return f'<div class="multiples">{"".join(_one(m, scale) for m in multiples)}</div>'


def has_errors(histogram: ErrorHistogram) -> bool:
    """True if any drawable bin has rows."""
    return any(histogram.counts[1:])


def _one(multiple: Multiple, scale: Scale) -> str:
    words = _words(multiple.rows)
    whole = f' title="{escaped_name(multiple.name)}"' * (len(multiple.name) > _NAME_CHARACTERS)
    return (
        f'<figure class="multiple"><figcaption><span class="name"{whole}>'
        f"<bdi>{escaped_name(multiple.name, _NAME_CHARACTERS)}</bdi></span>"
        f"<span>{escaped(multiple.css)}</span></figcaption>"
        '<svg class="heap" viewBox="0 0 1000 100" preserveAspectRatio="none" aria-hidden="true">'
        f'<path class="{escaped(multiple.css)}" d="{_outline(multiple.rows, scale)}"/></svg>'
        f'<svg class="axis" aria-hidden="true">{axis(_sparse(scale), percent_tick)}</svg>'
        f"<p>{words}</p></figure>"
    )


def _outline(histogram: ErrorHistogram, scale: Scale) -> str:
    highest = max(histogram.counts[1:])
    path, open_until = [], -1
    for index, count in enumerate(histogram.counts):
        if not index or not count:
            continue
        start, end = (round(1000 * scale.place(e)) for e in histogram.edges[index : index + 2])
        # A minimum height keeps every non-empty bin visible.
        top = round(100 - max(1.5, 100 * count / highest), 1)
        path.append(f"V{top:g}H{end}" if start == open_until else f"V100M{start} 100V{top:g}H{end}")
        open_until = end
    return "".join(path).removeprefix("V100") + "V100"


def _words(histogram: ErrorHistogram) -> str:
    parts = [f"half {_quantile(histogram, 0.5)}", f"99% {_quantile(histogram, 0.99)}"]
    if exact := histogram.counts[0]:
        parts.append(f"{counted(exact, 'row', ',')} below {percent_text(histogram.edges[1], 2)}")
    return ", ".join(parts)


def _quantile(histogram: ErrorHistogram, share: float) -> str:
    wanted, seen = share * sum(histogram.counts), 0
    for index, count in enumerate(histogram.counts):
        seen += count
        if seen >= wanted and index < len(histogram.counts) - 1:
            return f"below {percent_text(histogram.edges[index + 1], 2)}"
    return f"beyond {percent_text(histogram.edges[-2], 2)}"


def _sparse(scale: Scale) -> Scale:
    step = -(-len(scale.ticks) // 4)
    return Scale(scale.low, scale.high, scale.ticks[::step], scale.logarithmic)
