"""SVG line charts, such as of latency against load."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple
from xml.sax.saxutils import escape

from sharded_infer.reports.html.scale import Scale, linear_scale, log_scale

COLOURS = ("#1b6ca8", "#7a5195", "#c8553d")
_WIDTH, _HEIGHT = 720, 440
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 150, 40, 60
_GREY = "#888888"
_PERCENTILES = ("p50", "p95", "p99")


class Axis(NamedTuple):
    """The title of an axis, and its scale."""

    title: str
    scale: Scale


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one line, ascending, and the label beside the last."""

    name: str
    points: tuple[tuple[float, float], ...]


def line_chart(
    title: str,
    x: Axis,
    y: Axis,
    series: Sequence[Series],
    *,
    guide: Series | None = None,
    mark: tuple[float, str] | None = None,
) -> str:
    """Draw at most one series for each of `COLOURS` as SVG; series without points are left out.

    The guide is a dashed line without markers; the mark is a labelled value of x with a dashed
    line.
    """
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT

    def across(value: float) -> float:
        return _LEFT + x.scale.place(value) * (right - _LEFT)

    def down(value: float) -> float:
        return bottom - y.scale.place(value) * (bottom - _TOP)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'width="{_WIDTH}" height="{_HEIGHT}" font-family="sans-serif" font-size="12" '
        f'fill="#333333" role="img" aria-label="{escape(title)}">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        _text(_LEFT, 22, title, 'text-anchor="start" font-size="14"'),
        _text((_LEFT + right) / 2, _HEIGHT - 16, x.title),
        f'<g transform="translate(18 {(_TOP + bottom) / 2:.1f}) rotate(-90)">'
        f"{_text(0, 0, y.title)}</g>",
    ]
    for tick in x.scale.ticks:
        parts.append(_line(f"M{across(tick):.1f} {_TOP}V{bottom}"))
        parts.append(_text(across(tick), bottom + 18, f"{tick:,.0f}"))
    for tick in y.scale.ticks:
        parts.append(_line(f"M{_LEFT} {down(tick):.1f}H{right}"))
        parts.append(_text(_LEFT - 8, down(tick) + 4, f"{tick:g}", 'text-anchor="end"'))
    if mark is not None:
        parts.append(_line(f"M{across(mark[0]):.1f} {_TOP}V{bottom}", _GREY, dashes="5 4"))
        parts.append(_text(across(mark[0]), _TOP - 4, mark[1]))
    shown = [(one, colour, "") for one, colour in zip(series, COLOURS, strict=False) if one.points]
    if guide is not None:
        shown.append((guide, _GREY, "5 4"))
    ends = []
    for one, colour, dashes in shown:
        places = [(across(left), down(up)) for left, up in one.points]
        path = "L".join(f"{left:.1f} {top:.1f}" for left, top in places)
        parts.append(_line(f"M{path}", colour, dashes))
        if not dashes:
            circles = (f'cx="{left:.1f}" cy="{top:.1f}" r="3"' for left, top in places)
            parts += [f'<circle {circle} fill="{colour}"/>' for circle in circles]
        ends.append((places[-1][1], places[-1][0], one.name, colour))
    lowest = -math.inf
    for top, left, name, colour in sorted(ends):
        # Labels that would overlap move down.
        lowest = max(top + 4, lowest + 16)
        parts.append(_text(left + 8, lowest, name, f'text-anchor="start" fill="{colour}"'))
    return "\n".join([*parts, "</svg>"]) + "\n"


def latency_chart(
    title: str, points: Sequence[tuple[float, dict[str, float]]], capacity: float
) -> str:
    """Draw p50, p95 and p99 in milliseconds, against the rate, with a line at the capacity.

    Points are requests a second and latencies, ascending; those without latencies are left out.
    """
    shown = [(rate, latency_ms) for rate, latency_ms in points if latency_ms]
    values = [latency_ms[name] for _, latency_ms in shown for name in _PERCENTILES]
    return line_chart(
        title,
        Axis("requests a second", linear_scale([capacity, *(rate for rate, _ in shown)])),
        Axis("milliseconds from when a request was due", log_scale(values)),
        [Series(n, tuple((rate, latency[n]) for rate, latency in shown)) for n in _PERCENTILES],
        mark=(capacity, "closed-loop capacity"),
    )


def _line(path: str, colour: str = "#dddddd", dashes: str = "") -> str:
    return f'<path d="{path}" fill="none" stroke="{colour}" stroke-dasharray="{dashes}"/>'


def _text(x: float, y: float, text: str, style: str = 'text-anchor="middle"') -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'
