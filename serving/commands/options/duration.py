"""Durations as text: `90s`, `10m`, `2h`."""

import re

import typer

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|)")


def seconds_of(text: str) -> float:
    """Seconds of a duration on the command line; raise BadParameter for other text."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise typer.BadParameter(f"expected a duration such as 90s, 10m or 2h, got {text!r}")
    return float(found[1]) * _UNITS[found[2]]
