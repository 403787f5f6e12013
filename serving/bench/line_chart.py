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

    def place(point: tuple[float, float]) -> tuple[float, float]:
        across, up = x.scale.place(point[0]), y.scale.place(point[1])
        return _LEFT + across * (right - _LEFT), bottom - up * (bottom - _TOP)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'width="{_WIDTH}" height="{_HEIGHT}" font-family="sans-serif" font-size="12" role="img" '
        f'aria-label="{escape(title)}">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        _text(_LEFT, 22, title, anchor="start", size=14),
    ]
    for tick in x.scale.ticks:
        left, _ = place((tick, y.scale.low))
        parts += [_line(f"M{left:.1f} {_TOP}V{bottom}"), _text(left, bottom + 18, f"{tick:,.0f}")]
    for tick in y.scale.ticks:
        _, top = place((x.scale.high, tick))
        parts.append(_line(f"M{_LEFT} {top:.1f}H{right}"))
        parts.append(_text(_LEFT - 8, top + 4, f"{tick:g}", anchor="end"))
    if mark is not None:
        left, _ = place((mark[0], y.scale.low))
        parts.append(_line(f"M{left:.1f} {_TOP}V{bottom}", _GREY, dashes="5 4"))
        parts.append(_text(left, _TOP - 4, mark[1]))
    parts.append(_text((_LEFT + right) / 2, _HEIGHT - 16, x.title))
    parts.append(
        f'<g transform="translate(18 {(_TOP + bottom) / 2:.1f}) rotate(-90)">'
        f"{_text(0, 0, y.title)}</g>"
    )
    shown = [(one, colour, "") for one, colour in zip(series, COLOURS, strict=False) if one.points]
    if guide is not None:
        shown.append((guide, _GREY, "5 4"))
    names = []
    for one, colour, dashes in shown:
        places = [place(point) for point in one.points]
        path = " ".join(f"{left:.1f},{top:.1f}" for left, top in places)
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5" '
            f'stroke-dasharray="{dashes}"/>'
        )
        if not dashes:
            circles = (f'cx="{left:.1f}" cy="{top:.1f}" r="3"' for left, top in places)
            parts += [f'<circle {circle} fill="{colour}"/>' for circle in circles]
        names.append((places[-1], one.name, colour))
    lowest = -math.inf
    for (left, top), name, colour in sorted(names, key=lambda found: found[0][1]):
        # Labels that would overlap move down.
        lowest = max(top + 4, lowest + 16)
        parts.append(_text(left + 8, lowest, name, anchor="start", colour=colour))
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
    return f'<path d="{path}" stroke="{colour}" stroke-dasharray="{dashes}"/>'


def _text(
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "middle",
    colour: str = "#333333",
    size: int = 12,
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" '
        f'font-size="{size}">{escape(text)}</text>'
    )
