"""Errors of a table relative to its weights, for pages and terminals."""

import math

from quant.report import TableReport
from sharded_infer.reports.html.text import percent_text

EXACT = "exact"
UNKNOWN = "\N{EN DASH}"


def relative_error(table: TableReport) -> float | None:
    """`sqrt(mean squared error / mean square)`; None if that is undefined."""
    return _ratio(table.mean_squared_error, table.mean_square)


def minmax_error(table: TableReport) -> float | None:
    """`relative_error` with each row's minimum and maximum as its range; None if unknown."""
    if table.minmax_mean_squared_error is None:
        return None
    return _ratio(table.minmax_mean_squared_error, table.mean_square)


def mean_error(tables: tuple[TableReport, ...]) -> float | None:
    """The relative error over the elements of all tables."""
    elements = [table.rows * table.dim for table in tables]
    error = sum(n * t.mean_squared_error for n, t in zip(elements, tables, strict=True))
    square = sum(n * t.mean_square for n, t in zip(elements, tables, strict=True))
    return _ratio(error, square)


def error_text(error: float | None) -> str:
    """A relative error as text."""
    if error is None:
        return UNKNOWN
    return percent_text(error) if error else EXACT


def gain_text(table: TableReport) -> str:
    """Change of the error against min-max ranges; empty if ranges were not searched."""
    error, before = relative_error(table), minmax_error(table)
    if error is None or not before:
        return ""
    change = error / before - 1
    return f"{change:+.1%}".replace("-", "\N{MINUS SIGN}") if abs(change) >= 0.0005 else "0.0%"


def _ratio(error: float, square: float) -> float | None:
    if error == 0:
        return 0.0
    if square <= 0 or not math.isfinite(error) or not math.isfinite(square):
        return None
    return math.sqrt(error / square)
