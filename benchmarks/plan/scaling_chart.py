"""The planner's scaling curve as a picture: SVG, both axes logarithmic."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from serving.bench.charts.svg_text import svg_text

_WIDTH, _HEIGHT = 720, 440
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 150, 40, 60
_COLOURS = ("#1b6ca8", "#c8553d", "#7a5195")


@dataclass(frozen=True, slots=True)
class Series:
    """Measured points of one planner.

    Attributes:
        name: label beside the last point.
        points: tables and seconds, ascending.
    """

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class _Scale:
    lowest: tuple[float, float]  # powers of ten
    highest: tuple[float, float]

    def place(self, tables: float, seconds: float) -> tuple[float, float]:
        """Pixels from the left and the top."""
        x = (math.log10(tables) - self.lowest[0]) / (self.highest[0] - self.lowest[0])
        y = (math.log10(seconds) - self.lowest[1]) / (self.highest[1] - self.lowest[1])
        return (
            _LEFT + x * (_WIDTH - _LEFT - _RIGHT),
            _HEIGHT - _BOTTOM - y * (_HEIGHT - _TOP - _BOTTOM),
        )


def scaling_chart(title: str, series: Sequence[Series]) -> str:
    """Draws points, joined by lines, and N log N through the last point of the first series.

    Args:
        series: at most three; those without points are left out. The first has two or more.

    Returns:
        The SVG document.
    """
    shown = [one for one in series if one.points]
    ours = shown[0].points
    last_tables, last_seconds = ours[-1]
    unit = last_seconds / (last_tables * math.log(last_tables))
    guide = Series("N log N", tuple((n, unit * n * math.log(n)) for n, _ in ours))
    scale = _scale([point for one in (*shown, guide) for point in one.points])
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'width="{_WIDTH}" height="{_HEIGHT}" font-family="sans-serif" font-size="12" role="img" '
        f'aria-label="{escape(title)}">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        svg_text(_LEFT, 22, title, anchor="start", size=14),
        *_grid(scale),
        _line(guide, scale, "#888888", dashes='stroke-dasharray="5 4" '),
    ]
    for one, colour in zip(shown, _COLOURS, strict=False):
        parts.append(_line(one, scale, colour))
        for point in one.points:
            x, y = scale.place(*point)
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>')
    # Below its middle, where no series runs.
    x, y = scale.place(*guide.points[len(guide.points) // 2])
    parts.append(svg_text(x + 8, y + 18, guide.name, anchor="start", colour="#666666"))
    parts += _names(shown, scale)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _scale(points: Sequence[tuple[float, float]]) -> _Scale:
    tables, seconds = [math.log10(n) for n, _ in points], [math.log10(s) for _, s in points]
    return _Scale((min(tables), math.floor(min(seconds))), (max(tables), math.ceil(max(seconds))))


def _grid(scale: _Scale) -> list[str]:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    parts = []
    powers = range(math.ceil(scale.lowest[0]), math.floor(scale.highest[0]) + 1)
    for tables in sorted({*(10**power for power in powers), round(10 ** scale.highest[0])}):
        x, _ = scale.place(tables, 10.0 ** scale.lowest[1])
        parts.append(f'<path d="M{x:.1f} {_TOP}V{bottom}" stroke="#dddddd"/>')
        parts.append(svg_text(x, bottom + 18, f"{tables:,}"))
    for power in range(round(scale.lowest[1]), round(scale.highest[1]) + 1):
        _, y = scale.place(10.0 ** scale.lowest[0], 10.0**power)
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{right}" stroke="#dddddd"/>')
        parts.append(svg_text(_LEFT - 8, y + 4, f"{10.0**power:g}", anchor="end"))
    middle = (_TOP + bottom) / 2
    parts.append(f'<path d="M{_LEFT} {_TOP}V{bottom}H{right}" fill="none" stroke="#333333"/>')
    parts.append(svg_text((_LEFT + right) / 2, _HEIGHT - 16, "tables"))
    parts.append(
        f'<g transform="translate(20 {middle:.1f}) rotate(-90)">'
        f"{svg_text(0, 0, 'seconds to plan')}</g>"
    )
    return parts


def _names(shown: Sequence[Series], scale: _Scale) -> list[str]:
    """Each series' name beside its last point, moved down where two would meet."""
    placed = [
        (scale.place(*one.points[-1]), one.name, colour)
        for one, colour in zip(shown, _COLOURS, strict=False)
    ]
    parts, lowest = [], -math.inf
    for (x, y), name, colour in sorted(placed, key=lambda p: p[0][1]):
        lowest = max(y + 4, lowest + 16)
        parts.append(svg_text(x + 8, lowest, name, anchor="start", colour=colour))
    return parts


def _line(one: Series, scale: _Scale, colour: str, dashes: str = "") -> str:
    path = " ".join("{:.1f},{:.1f}".format(*scale.place(*point)) for point in one.points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" {dashes}stroke-width="1.5"/>'
