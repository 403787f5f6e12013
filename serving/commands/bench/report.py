"""The harness of benchmarks: a measurement as a command that prints its report, or writes it."""

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from kernels.machine import machine
from serving.commands.console import OUT, JsonFileOption, check_target, progress_bars, write_json

Form = str | Callable[[Any], str]
TEXT = "s"
Columns = Sequence[tuple[str, Form]]
_JSON_FILE = inspect.Parameter(
    "json_file", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=JsonFileOption
)


@dataclass(frozen=True, slots=True)
class Report:
    """A table, notes below it, and the figures that `--json` writes."""

    columns: Columns
    rows: Iterable[Sequence[object]]
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
        if report.columns:
            print_table(report.columns, report.rows, report.title)
        cores = f"{os.cpu_count()} CPU cores, {machine().class_text}"
        OUT.print("\n".join([*report.notes, cores]), highlight=False, soft_wrap=True)
        write_json(json_file, report.fields)

    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [*parameters.values(), _JSON_FILE]
    )
    return command


def print_table(
    columns: Columns, rows: Iterable[Sequence[object]], title: str | None = None
) -> None:
    """Print figures in columns, with a heading and a format or formatter; None is shown as `-`."""
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))
    for number, (heading, form) in enumerate(columns):
        # Texts after the first column, such as several kinds of errors, may be long.
        is_text = form == TEXT
        table.add_column(
            heading, justify="left" if is_text else "right", no_wrap=not (is_text and number)
        )
    for row in rows:
        table.add_row(*(_shown(value, c[1]) for value, c in zip(row, columns, strict=True)))
    OUT.print(table)


def times(factor: float, form: str) -> Callable[[float], str]:
    """Format figures in another unit, such as milliseconds for seconds."""
    return lambda value: format(value * factor, form)


def _shown(value: object, form: Form) -> str:
    if value is None:
        return "-"
    return format(value, form) if isinstance(form, str) else form(value)
