"""Durations on the command line."""

import re

import typer

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d|)")


def parse_seconds(text: str) -> float:
    """The seconds of a duration; BadParameter for another text."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise typer.BadParameter(f"expected a duration such as 90s, 10m or 2h, got {text!r}")
    return float(match[1]) * _UNITS[match[2]]
