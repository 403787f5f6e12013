"""A scatter chart with labelled points."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product

from sharded_infer.reports.html.scale import Scale
from sharded_infer.reports.html.text import escaped_name, shortened

_WIDTH, _HEIGHT = 560, 320  # of the drawing, in SVG units
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 24, 24, 44  # margins around the frame
_EXACT = 36  # height of the band for 0, below a logarithmic scale
_CHARACTER, _LINE = 6.9, 15  # width of a character and height of a line in a label
_NAME_CHARACTERS = 20
_LABELLED = 40  # maximum number of labelled points

Box = tuple[float, float, float, float]  # left, top, right, bottom


@dataclass(frozen=True, slots=True)
class Point:
    """A point of the chart; `reach` is the y range of a vertical line through its dot."""

    name: str
    x: float
    y: float
    reach: tuple[float, float] | None = None
    marked: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of the chart: `text` formats a tick, `title` is HTML."""

    scale: Scale
    text: Callable[[float], str]
    title: str


def scatter(label: str, points: Sequence[Point], x: Axis, y: Axis) -> str:
    """The chart as an `svg`; `label` is HTML. On a log y axis, zeros are in a separate band."""
    band = y.scale.logarithmic and any(point.y <= 0 for point in points)
    place = _Places(x.scale, y.scale, _EXACT if band else 0)
    drawn = [*_frame(x, y, place, band=band)]
    taken: list[Box] = []
    for point in points:
        across, up = place.across(point.x), place.up(point.y)
        taken.append((across - 6, up - 6, across + 6, up + 6))
        if point.reach is not None:
            low, high = map(place.up, point.reach)
            css = " marked" * point.marked
            drawn.append(
                f'<line class="reach{css}" x1="{across:.1f}" x2="{across:.1f}" y1="{low:.1f}" '
                f'y2="{high:.1f}"/>'
            )
            taken.append((across - 2, high, across + 2, low))
    # Highlighted points are drawn last, above the others, and are labelled first.
    for point in sorted(points, key=lambda p: p.marked):
        css = ' class="marked"' * point.marked
        across, up = place.across(point.x), place.up(point.y)
        drawn.append(f'<circle{css} cx="{across:.1f}" cy="{up:.1f}" r="{5.5 if css else 4.5}"/>')
    for point in sorted(points, key=lambda p: not p.marked)[:_LABELLED]:
        drawn.append(_label(point, place, taken))
    return (
        f'<svg class="scatter" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">'
        f"{''.join(drawn)}</svg>"
    )


@dataclass(frozen=True, slots=True)
class _Places:
    x: Scale
    y: Scale
    band: int

    def across(self, value: float) -> float:
        return _LEFT + self.x.place(value) * (_WIDTH - _LEFT - _RIGHT)

    def up(self, value: float) -> float:
        bottom = _HEIGHT - _BOTTOM
        if self.band and value <= 0:
            return bottom - self.band / 2
        bottom -= self.band
        return bottom - self.y.place(value) * (bottom - _TOP)


def _frame(x: Axis, y: Axis, place: _Places, *, band: bool) -> Iterable[str]:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    for tick in y.scale.ticks:
        up = place.up(tick) if tick > 0 or not band else bottom
        strong = ' class="grid zero"' if tick == 0 else ' class="grid"'
        yield f'<line{strong} x1="{_LEFT}" x2="{right}" y1="{up:.1f}" y2="{up:.1f}"/>'
        yield f'<text class="up" x="{_LEFT - 8}" y="{up + 4:.1f}">{y.text(tick)}</text>'
    if band:
        up = bottom - _EXACT / 2
        yield f'<text class="up" x="{_LEFT - 8}" y="{up + 4:.1f}">none</text>'
    yield f'<line class="base" x1="{_LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>'
    for tick in x.scale.ticks:
        across = place.across(tick)
        yield (
            f'<line class="base" x1="{across:.1f}" x2="{across:.1f}" y1="{bottom}" '
            f'y2="{bottom + 4}"/>'
        )
        yield f'<text x="{across:.1f}" y="{bottom + 17}">{x.text(tick)}</text>'
    yield f'<text x="{(_LEFT + right) / 2:.1f}" y="{_HEIGHT - 6}">{x.title}</text>'


def _label(point: Point, place: _Places, taken: list[Box]) -> str:
    across, up = place.across(point.x), place.up(point.y)
    width = _CHARACTER * len(shortened(point.name, _NAME_CHARACTERS)) + 2
    for side, shift in product((1, -1, 0), (0, -11, 11, -22, 22)):
        if side == 0 and abs(shift) < 11:
            continue
        left = {1: across + 9, -1: across - 9 - width, 0: across - width / 2}[side]
        middle = up + (shift if side else 1.4 * shift)
        box = (left, middle - _LINE / 2, left + width, middle + _LINE / 2)
        inside = left > _LEFT and box[2] < _WIDTH and box[1] > 0 and box[3] < _HEIGHT - _BOTTOM
        if inside and not any(_overlap(box, other) for other in taken):
            taken.append(box)
            css = " marked" * point.marked
            return (
                f'<text class="label{css}" x="{left:.1f}" y="{middle + 4:.1f}">'
                f"{escaped_name(point.name, _NAME_CHARACTERS)}</text>"
            )
    return ""


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
