"""Tables and notes that benchmarks print."""

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rich.table import Table

from kernels.machine import machine
from serving.commands.console import OUT

Form = str | Callable[[Any], str]
TEXT = "s"


def print_table(
    columns: Sequence[tuple[str, Form]],
    rows: Iterable[Sequence[object]],
    *,
    title: str | None = None,
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


def print_notes(*lines: str) -> None:
    """Print lines below a table, and the machine's cores and instruction set."""
    cores = f"{os.cpu_count()} CPU cores, {machine().class_text}"
    OUT.print("\n".join((*lines, cores)), highlight=False, soft_wrap=True)


def times(factor: float, form: str) -> Callable[[float], str]:
    """Format figures in another unit, such as milliseconds for seconds."""
    return lambda value: format(value * factor, form)


def _shown(value: object, form: Form) -> str:
    if value is None:
        return "-"
    return format(value, form) if isinstance(form, str) else form(value)
