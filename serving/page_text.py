"""Words and figures on a page: escaped, short, with units."""

import html

from sharded_infer.sizes import three_digits

_NAME_CHARACTERS = 120


def escaped(text: str) -> str:
    """Text for HTML, as content or between double quotes; what cannot be seen is replaced."""
    visible = "".join(
        c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text
    )
    return html.escape(visible)


def escaped_name(name: str) -> str:
    """A name for HTML; a very long one loses its middle."""
    if len(name) > _NAME_CHARACTERS:
        half = _NAME_CHARACTERS // 2
        name = f"{name[:half]}\N{HORIZONTAL ELLIPSIS}{name[-half:]}"
    return escaped(name)


def time_text(seconds: float) -> str:
    """Microseconds, so that all times of a page compare."""
    return f"{three_digits(seconds * 1e6)} µs"


def count_text(count: int, what: str) -> str:
    """A number of things; `what` is one of them."""
    return f"{count:,} {what}{'s' * (count != 1)}"
