"""Latency against load as a picture: SVG, latency logarithmic."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from serving.bench.charts.svg_text import svg_text

_WIDTH, _HEIGHT = 720, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 90, 40, 60
_COLOURS = {"p50": "#1b6ca8", "p95": "#7a5195", "p99": "#c8553d"}


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """One load of a sweep.

    Attributes:
        rate: requests begun a second.
        latency_ms: percentiles, milliseconds.
    """

    rate: float
    latency_ms: dict[str, float]


def latency_chart(title: str, points: Sequence[LoadPoint], capacity: float) -> str:
    """Draws p50, p95 and p99 against the rate of requests.

    Args:
        points: by ascending rate; those without answers are left out.
        capacity: requests a second that the server answers at most; a line marks it.

    Returns:
        The SVG document.
    """
    shown = [point for point in points if point.latency_ms]
    highest_rate = max([capacity, *(point.rate for point in shown)]) * 1.02
    values = [point.latency_ms[name] for point in shown for name in _COLOURS] or [1.0, 10.0]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    high = max(high, low + 1)

    def place(rate: float, milliseconds: float) -> tuple[float, float]:
        x = _LEFT + rate / highest_rate * (_WIDTH - _LEFT - _RIGHT)
        y = (math.log10(milliseconds) - low) / (high - low)
        return x, _HEIGHT - _BOTTOM - y * (_HEIGHT - _TOP - _BOTTOM)

    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'width="{_WIDTH}" height="{_HEIGHT}" font-family="sans-serif" font-size="12" role="img" '
        f'aria-label="{escape(title)}">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        svg_text(_LEFT, 22, title, anchor="start", size=14),
    ]
    for power in range(low, high + 1):
        _, y = place(0.0, 10.0**power)
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{right}" stroke="#dddddd"/>')
        parts.append(svg_text(_LEFT - 8, y + 4, f"{10.0**power:g}", anchor="end"))
    for tick in range(1, 11):
        x, _ = place(highest_rate * tick / 10, 10.0**low)
        parts.append(svg_text(x, bottom + 18, f"{highest_rate * tick / 10:,.0f}"))
    x, _ = place(capacity, 10.0**low)
    parts.append(f'<path d="M{x:.1f} {_TOP}V{bottom}" stroke="#888888" stroke-dasharray="5 4"/>')
    parts.append(svg_text(x, _TOP - 4, "closed-loop capacity", colour="#666666"))
    parts.append(f'<path d="M{_LEFT} {_TOP}V{bottom}H{right}" fill="none" stroke="#333333"/>')
    parts.append(svg_text((_LEFT + right) / 2, _HEIGHT - 16, "requests a second"))
    middle = (_TOP + bottom) / 2
    parts.append(
        f'<g transform="translate(18 {middle:.1f}) rotate(-90)">'
        f"{svg_text(0, 0, 'milliseconds from when a request was due')}</g>"
    )
    for name, colour in _COLOURS.items():
        places = [place(point.rate, point.latency_ms[name]) for point in shown]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
        )
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
        if places:
            x, y = places[-1]
            parts.append(svg_text(x + 8, y + 4, name, anchor="start", colour=colour))
    return "\n".join([*parts, "</svg>"]) + "\n"
