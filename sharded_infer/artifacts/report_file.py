"""`report.json`: the quantization report. Untrusted: invalid fields are refused by place."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise

from pydantic import TypeAdapter, ValidationError

from quant.report import (
    BudgetReport,
    CalibrationReport,
    MixReport,
    QuantizationReport,
    TableContribution,
    TableReport,
    import_text,
)
from sharded_infer.artifacts.manifest import REPORT_NAME
from sharded_infer.errors import ArtifactError, InternalError

__all__ = [
    "BudgetReport",
    "CalibrationReport",
    "MixReport",
    "QuantizationReport",
    "TableContribution",
    "TableReport",
    "dump_report",
    "import_text",
    "report_from_fields",
]

_ADAPTER = TypeAdapter(QuantizationReport)


def dump_report(report: QuantizationReport) -> bytes:
    """The report as JSON; InternalError if a figure is NaN or infinite."""
    fields = report.fields()
    for place, value in _leaves(fields):
        if isinstance(value, float) and not math.isfinite(value):
            raise InternalError(f"{REPORT_NAME}: {'.'.join(place)}: expected a number, got {value}")
    return json.dumps(fields, indent=1).encode() + b"\n"


def report_from_fields(
    fields: Mapping[str, object], where: str = REPORT_NAME
) -> QuantizationReport:
    """Parse a report of the file `where`; ArtifactError for missing, unknown or invalid fields."""
    try:
        # As JSON, because tuples and row formats have other types there.
        report = _ADAPTER.validate_json(json.dumps(fields), strict=True)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        place = ".".join(map(str, problem["loc"])) or "the document"
        raise ArtifactError(
            f"{where}: {place}: {problem['msg']}, got {str(problem['input'])[:80]!r}"
        ) from error
    except (TypeError, ValueError) as error:
        raise ArtifactError(f"{where}: expected parsed JSON: {error}") from error
    _check_known(fields, report, where)
    _check_numbers(report, where)
    return report


def _check_known(fields: object, report: QuantizationReport, where: str) -> None:
    known = {place for place, _ in _leaves(report.fields())}
    for place, value in _leaves(fields):
        if place not in known:
            raise ArtifactError(
                f"{where}: {'.'.join(place)}: expected no such field, got {str(value)[:80]!r}"
            )


def _check_numbers(report: QuantizationReport, where: str) -> None:
    # All are sizes, counts, distances or areas: no figure of a report has a sign.
    for place, value in _leaves(report.fields()):
        if isinstance(value, int | float) and not 0 <= value < math.inf:
            raise ArtifactError(
                f"{where}: {'.'.join(place)}: expected a finite number from 0, got {value!r}"
            )
    for index, table in enumerate(report.tables):
        edges, counts = table.row_errors.edges, table.row_errors.counts
        if len(edges) != len(counts) + 1 or any(one >= next_ for one, next_ in pairwise(edges)):
            raise ArtifactError(
                f"{where}: tables.{index}.row_errors: expected ascending edges, one more than "
                f"counts, got {len(edges)} edges and {len(counts)} counts"
            )


def _leaves(value: object, place: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    """Every value without children, with its place; empty lists and objects count."""
    children: Iterable[tuple[object, object]] = ()
    if isinstance(value, Mapping):
        children = value.items()
    elif isinstance(value, list | tuple):
        children = enumerate(value)
    if not children or not value:
        yield place, value
    for name, child in children:
        yield from _leaves(child, (*place, str(name)))
