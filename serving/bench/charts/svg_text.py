"""Text in the benchmarks' pictures."""

from xml.sax.saxutils import escape


def svg_text(
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "middle",
    colour: str = "#333333",
    size: int = 12,
) -> str:
    """A line of text as an SVG element.

    Args:
        x: pixels from the left.
        y: pixels from the top, of its baseline.
        text: unescaped.
        anchor: the part of the text at x: start, middle or end.
    """
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" '
        f'font-size="{size}">{escape(text)}</text>'
    )
