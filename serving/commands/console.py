"""Output of commands: tables and progress for people, JSON for scripts."""

import json
import os
import time
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, ConsoleDimensions, JustifyMethod, OverflowMethod
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from sharded_infer.errors import InputError
from sharded_infer.files.regular_file import write_file
from sharded_infer.progress import Progress as ProgressCallback
from sharded_infer.reports.html.text import visible

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
# For commands whose figures are kept, in addition to what they print.
JsonFileOption = Annotated[
    Path | None,
    typer.Option(
        "--json",
        metavar="FILE",
        help="Also write the figures to this file as JSON; -: print them as the last line.",
    ),
]
# In place of a file: print the figures last.
_PRINTED = Path("-")
_UPDATE_SECONDS = 0.05  # between updates of a bar
_PIPED_COLUMNS = 160  # tables in a pipe or a file are not cut to a terminal's width


class _Plain(Console):
    """A console that prints names literally: their markup and control characters have no effect."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False, highlight=False)

    def render_str(self, text: str, **settings: Any) -> Text:
        return super().render_str(visible(text), **settings)

    @property
    def size(self) -> ConsoleDimensions:
        if self.is_terminal or "COLUMNS" in os.environ:
            return super().size
        return ConsoleDimensions(_PIPED_COLUMNS, super().size.height)

    @size.setter
    def size(self, new_size: tuple[int, int]) -> None:
        self._width, self._height = new_size


OUT = _Plain()
ERRORS = _Plain(stderr=True)


def say(text: str) -> None:
    """Print text in lines that only the terminal wraps."""
    OUT.print(text, soft_wrap=True)


def print_result(fields: object, *shown: str | Table, as_json: bool) -> None:
    """Print a command's result: fields for scripts, or texts and tables for people."""
    if as_json:
        print_json(fields)
        return
    for part in filter(None, shown):
        OUT.print(part, soft_wrap=isinstance(part, str))


def figure_table(
    title: str,
    headings: Sequence[str],
    left: Container[str] = (),
    overflow: OverflowMethod = "ellipsis",
) -> Table:
    """A table of figures, whose columns are aligned to the right, but for those in `left`."""
    table = Table(title=title, title_justify="left")
    for heading in headings:
        justify: JustifyMethod = "left" if heading in left else "right"
        table.add_column(heading, justify=justify, overflow=overflow)
    return table


def print_json(fields: object) -> None:
    """Print one line of JSON and flush it, since a script may be waiting."""
    print(json.dumps(fields), flush=True)  # noqa: T201 - output for scripts


def print_errors(messages: Sequence[str]) -> None:
    """Print the errors that a command collected; with any, raise Exit with code 1."""
    for message in messages:
        ERRORS.print(f"error: {message}", soft_wrap=True)
    if messages:
        raise typer.Exit(1)


def check_target(path: Path | None) -> None:
    """Raise InputError if a target file is a folder, or its folder does not exist."""
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise InputError(f"{path}: cannot be written: expected a file in an existing folder")


def write_json(path: Path | None, fields: object) -> None:
    """Write figures to a file, or print them for `-`; None does nothing. InputError on failure."""
    if path is None:
        return
    if path == _PRINTED:
        print_json(fields)
        return
    write_target(path, json.dumps(fields, indent=1) + "\n")


def write_target(path: Path, content: str | bytes) -> None:
    """Write the file that an option names; raise InputError if it cannot be written."""
    try:
        write_file(path, content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from error


class _RateColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        if not task.speed or (task.total or 0) < 10**6:
            return Text("")
        return Text(f"{task.speed / 1e6:.0f} MB/s")


@contextmanager
def progress_bars() -> Iterator[ProgressCallback]:
    """Bars for `Progress` callbacks, one a task."""
    columns = (
        TextColumn("{task.description:<24}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        _RateColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        tasks: dict[str, TaskID] = {}
        shown_at = 0.0

        def report(what: str, done: int, total: int) -> None:
            nonlocal shown_at
            if bars.disable:
                return
            now = time.monotonic()
            # Updating a bar costs as much as encoding a chunk.
            if what in tasks and done < total and now - shown_at < _UPDATE_SECONDS:
                return
            shown_at = now
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield report
