"""Charts as tables: each row has bars, dots or ticks beside their figures.

One column of the table is drawn. All figures are also aligned text for screen readers. Positions
are in percent and sizes in pixels, so a drawing fills its column and its dots stay round.
"""

from collections.abc import Callable, Iterable, Sequence

from sharded_infer.reports.html.scale import Scale
from sharded_infer.reports.html.text import escaped, escaped_name

_NAME_CHARACTERS = 30  # maximum for a name beside a drawing
_THINNEST = 0.0015  # minimum share of the drawing's width, so that every bar is visible


def chart_table(
    label: str, heads: Sequence[str], rows: Iterable[Iterable[str]], foot: str = ""
) -> str:
    """A table of figures with one drawn column; all texts are HTML.

    `label` is for screen readers; a leading # of a head marks a column of numbers; `foot` is a last
    row, as from `axis_row`.
    """
    head = "".join(
        f'<th scope="col"{" class=n" if h.startswith("#") else ""}>{h.removeprefix("#")}</th>'
        for h in heads
    )
    body = "\n".join(f"<tr>{''.join(cells)}</tr>" for cells in rows)
    end = f"\n<tfoot>{foot}</tfoot>" if foot else ""
    return (
        f'<div class="scroll" role="region" aria-label="{label}" tabindex="0">'
        f'<table class="chart">\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>{end}\n'
        "</table></div>"
    )


def name_cell(name: str) -> str:
    """The name of a row; a long name is shortened in the middle and shown in full on hover."""
    whole = f' title="{escaped_name(name)}"' if len(name) > _NAME_CHARACTERS else ""
    text = escaped_name(name, _NAME_CHARACTERS)
    return f'<th scope="row" class="name"{whole}><bdi>{text}</bdi></th>'


def format_cell(row_format: str) -> str:
    """A cell with a row format and its colour."""
    return f'<td class="keep"><i class="{escaped(row_format)}"></i>{escaped(row_format)}</td>'


def figure_cell(text: str) -> str:
    """A right-aligned figure."""
    return f'<td class="n">{text}</td>'


def bar_cell(parts: Iterable[tuple[str, float]], outline: float = 0.0) -> str:
    """A cell with bars side by side: (CSS class of the colour, share of the drawing's width).

    `outline` is the share of an empty bar around them; 0 draws none.
    """
    drawn = []
    if outline:
        drawn.append(f'<rect class="outline" width="{_percent(outline)}" height="100%"/>')
    start = 0.0
    for css, share in parts:
        width = max(share, _THINNEST) if share else 0.0
        place = f'x="{_percent(start)}" ' if start else ""
        drawn.append(f'<rect class="{css}" {place}width="{_percent(width)}" height="100%"/>')
        start += share
    return _drawn("bar", drawn)


def dot_cell(scale: Scale, css: str, value: float, hollow: float | None = None) -> str:
    """A cell with a dot, and optionally a hollow dot for comparison."""
    drawn = _grid(scale)
    end = _percent(scale.place(value))
    if hollow is not None:
        start = _percent(scale.place(hollow))
        drawn.append(f'<line class="reach" x1="{start}" x2="{end}" y1="50%" y2="50%"/>')
        drawn.append(f'<circle class="hollow {css}" cx="{start}" cy="50%" r="3.5"/>')
    drawn.append(f'<circle class="{css}" cx="{end}" cy="50%" r="4.5"/>')
    return _drawn("dots", drawn)


def ticks_cell(scale: Scale, css: str, values: Iterable[float], marked: float | None) -> str:
    """A cell with a thin line for every value, and a dot at the `marked` summary value."""
    places = sorted({round(1000 * scale.place(value)) for value in values})
    path = "".join(f"M{place} 3v14" for place in places)
    drawn = [
        *_grid(scale),
        '<svg width="100%" height="100%" viewBox="0 0 1000 20" preserveAspectRatio="none">'
        f'<path class="ticks {css}" d="{path}"/></svg>',
    ]
    if marked is not None:
        place = _percent(scale.place(marked))
        drawn.append(f'<circle class="marked {css}" cx="{place}" cy="50%" r="4.5"/>')
    return _drawn("dots", drawn)


def empty_cell(scale: Scale | None = None) -> str:
    """A cell with only the grid lines of a scale."""
    return _drawn("dots", _grid(scale) if scale else [])


def axis_row(scale: Scale, text: Callable[[float], str], before: int, after: int) -> str:
    """The row below a drawing with its scale's labels, between columns `before` and `after`."""
    left = f'<td colspan="{before}"></td>' if before else ""
    right = f'<td colspan="{after}"></td>' if after else ""
    return f"<tr>{left}{_drawn('axis', [axis(scale, text)])}{right}</tr>"


def axis(scale: Scale, text: Callable[[float], str]) -> str:
    """The labels of a scale's ticks, for an `svg` as wide as the scale."""
    return "".join(
        f'<text x="{_percent(scale.place(tick))}" y="13">{text(tick)}</text>'
        for tick in scale.ticks
    )


def _grid(scale: Scale) -> list[str]:
    return [
        f'<line class="grid" x1="{place}" x2="{place}" y1="0" y2="100%"/>'
        for place in (_percent(scale.place(tick)) for tick in scale.ticks)
    ]


def _drawn(css: str, parts: Iterable[str]) -> str:
    return f'<td class="drawn"><svg class="{css}" aria-hidden="true">{"".join(parts)}</svg></td>'


def _percent(share: float) -> str:
    return f"{100 * share:.2f}%"
