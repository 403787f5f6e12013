"""The harness of benchmarks: a measurement as a command that prints its report, or writes it."""

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from kernels.machine import machine
from serving.commands.console import OUT, JsonFileOption, check_target, progress_bars, write_json

Form = str | Callable[[Any], str]
TEXT = "s"
Columns = Sequence[tuple[str, Form] | tuple[str, Form, str]]
_JSON_FILE = inspect.Parameter(
    "json_file", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=JsonFileOption
)


@dataclass(frozen=True, slots=True)
class Report:
    """A table, notes below it, and the figures that `--json` writes.

    A column has a heading, a format or formatter, and, where rows are mappings, a key of their
    values, such as `latency_ms/p99`.
    """

    columns: Columns
    rows: Iterable[Sequence[object] | Mapping[str, Any]]
    notes: Sequence[str]
    fields: Any
    title: str | None = None


def bench_command(measure: Callable[..., Report]) -> Callable[..., None]:
    """Make a command of a function of options, and perhaps of `progress`; it gets `--json` too."""
    parameters = dict(inspect.signature(measure).parameters)
    has_bars = parameters.pop("progress", None) is not None

    @functools.wraps(measure)
    def command(*, json_file: Path | None, **options: Any) -> None:
        check_target(json_file)
        if has_bars:
            with progress_bars() as progress:
                report = measure(progress=progress, **options)
        else:
            report = measure(**options)
        OUT.print(_table(report))
        cores = f"{os.cpu_count()} CPU cores, {machine().class_text}"
        OUT.print("\n".join([*report.notes, cores]), highlight=False, soft_wrap=True)
        write_json(json_file, report.fields)

    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [*parameters.values(), _JSON_FILE]
    )
    return command


def times(factor: float, form: str) -> Callable[[float], str]:
    """Format figures in another unit, such as milliseconds for seconds."""
    return lambda value: format(value * factor, form)


def _table(report: Report) -> Table:
    """Figures in columns with headings; None is shown as `-`."""
    table = Table(title=report.title, title_justify="left", box=None, padding=(0, 1, 0, 0))
    for number, (heading, form, *_) in enumerate(report.columns):
        # Texts after the first column, such as several kinds of errors, may be long.
        is_text = form in (TEXT, counts_text)
        table.add_column(
            heading, justify="left" if is_text else "right", no_wrap=not (is_text and number)
        )
    for row in report.rows:
        values: Iterable[object] = row
        if isinstance(row, Mapping):
            values = [_value(row, column[2]) for column in report.columns if len(column) == 3]
        forms = (column[1] for column in report.columns)
        table.add_row(*(_shown(value, form) for value, form in zip(values, forms, strict=True)))
    return table


def _value(row: Any, key: str) -> object:
    for name in key.split("/"):
        row = row[name]
    return row


def counts_text(counts: Mapping[str, int]) -> str:
    """Format counts, such as of requests by status code."""
    return ", ".join(f"{count:,} {name}" for name, count in counts.items()) or "0"


def _shown(value: object, form: Form) -> str:
    if value is None:
        return "-"
    return format(value, form) if isinstance(form, str) else form(value)
