"""Text and figures for a page: escaped, short, with units."""

import html
import math
from collections.abc import Callable, Iterable

from sharded_infer.byte_sizes import three_digits

NAME_CHARACTERS = 120
MINUS = "\N{MINUS SIGN}"
_EXPONENT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def visible(text: str) -> str:
    """Replace invisible characters and those that change the text's direction."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)


def escaped(text: str) -> str:
    """Escape for HTML content or a double-quoted attribute; replaces as `visible` does."""
    return html.escape(visible(text))


def shortened(name: str, most: int = NAME_CHARACTERS) -> str:
    """Replace the middle of a name longer than `most` characters by an ellipsis."""
    if len(name) <= most:
        return name
    half = most // 2
    return f"{name[:half]}\N{HORIZONTAL ELLIPSIS}{name[-half:]}"


def escaped_name(name: str, most: int = NAME_CHARACTERS) -> str:
    """Shorten a name in the middle and escape it for HTML."""
    return escaped(shortened(name, most))


def time_text(seconds: float) -> str:
    """A time in microseconds, so that all times on a page are comparable."""
    return f"{three_digits(seconds * 1e6)} µs"


def number_text(value: float, digits: int = 3) -> str:
    """A number with `digits` significant digits, including trailing zeros."""
    if value == 0:
        return "0"
    # A number with more integer digits than that is rounded to an integer.
    whole = abs(value) >= 10**digits - 0.5
    text = f"{abs(value):,.0f}" if whole else f"{abs(value):#.{digits}g}".removesuffix(".")
    return MINUS * (value < 0) + _with_power(text)


def tick_text(value: float) -> str:
    """A round number without trailing zeros."""
    return MINUS * (value < 0) + _with_power(f"{abs(value):.6g}")


def _with_power(text: str) -> str:
    mantissa, _, exponent = text.partition("e")
    if not exponent:
        return text
    power = f"10{str(int(exponent)).translate(_EXPONENT)}"
    return power if mantissa == "1" else f"{mantissa} \N{MULTIPLICATION SIGN} {power}"


def percent_text(share: float, digits: int = 3) -> str:
    """A share in percent with `digits` significant digits, including trailing zeros."""
    return f"{number_text(100 * share, digits)}%"


def percent_tick(share: float) -> str:
    """A round share in percent without trailing zeros."""
    return f"{tick_text(100 * share)}%"


def signed_text(value: float, decimals: int) -> str:
    """A difference with its sign; 0 has no sign."""
    text = f"{abs(value):,.{decimals}f}"
    if not float(text.replace(",", "")):
        return text
    return (MINUS if value < 0 else "+") + text


def column_text(
    values: Iterable[float], *, digits: int = 2, most: int = 9
) -> Callable[[float], str]:
    """A format for the numbers of a column, with aligned decimal points.

    The smallest nonzero number gets `digits` significant digits, at most `most` decimals.
    """
    sizes = [abs(value) for value in values if value]
    least = min(sizes, default=1.0)
    decimals = min(most, max(0, digits - 1 - math.floor(math.log10(least))))

    def text(value: float) -> str:
        if value and abs(value) < 0.5 * 10**-decimals:
            return f"<{10**-decimals:.{decimals}f}"
        return (MINUS if value < 0 else "") + f"{abs(value):,.{decimals}f}" if value else "0"

    return text
