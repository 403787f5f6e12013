"""Sizes in bytes as text: GB is 1000^3 bytes, GiB 1024^3."""

import re

from sharded_infer.errors import InputError

_SIZE = re.compile(r"(?P<size>[0-9]+(\.[0-9]+)?)(?P<unit>kB|[KMGT]i?B)")
_UNITS = {
    prefix + ending: base**power
    for power, prefix in enumerate("KMGT", start=1)
    for ending, base in (("B", 1000), ("iB", 1024))
} | {"kB": 1000}


def parse_size(text: str, where: str) -> int:
    """Parse a size such as `70GB` or `64GiB`, in bytes; InputError naming `where` otherwise."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise InputError(f"{where}: {text!r}, expected a size such as '70GB'")
    return round(float(match["size"]) * float(_UNITS[match["unit"]]))


def size_text(count: float) -> str:
    """Bytes with three digits and a unit of 1000^n."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:,.0f} B" if unit == "B" else f"{three_digits(count)} {unit}"
        count /= 1000
    return f"{three_digits(count)} TB"


def three_digits(value: float) -> str:
    """At least three digits."""
    if value >= 99.95 or value == 0:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"
