"""What commands print: tables for people, JSON for scripts."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console, ConsoleDimensions
from rich.text import Text

from sharded_infer.errors import InputError
from sharded_infer.files.regular_file import write_file
from sharded_infer.reports.html.text import visible

# In a file's place: the end of what a command prints.
_PRINTED = Path("-")
_PIPED_COLUMNS = 160  # tables in a pipe or a file are not cut to a terminal's width


class _Plain(Console):
    """Prints names literally: their markup and control characters have no effect."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False)

    def render_str(self, text: str, **settings: Any) -> Text:
        return super().render_str(visible(text), **settings)


class _Output(_Plain):
    """Looks up its output stream at each print, not when it is created."""

    @property
    def size(self) -> ConsoleDimensions:
        if self.is_terminal or "COLUMNS" in os.environ:
            return super().size
        return ConsoleDimensions(_PIPED_COLUMNS, super().size.height)

    @size.setter
    def size(self, new_size: tuple[int, int]) -> None:
        self._width, self._height = new_size


OUT = _Output()
ERRORS = _Plain(stderr=True)


def print_json(fields: object) -> None:
    """Prints one line of JSON and flushes it, since a script may be waiting."""
    print(json.dumps(fields), flush=True)  # noqa: T201 - output for scripts


def print_errors(messages: Sequence[str]) -> None:
    """Prints the errors that a command collected and ends it; does nothing without errors.

    Raises:
        Exit: with 1, if there are errors.
    """
    for message in messages:
        ERRORS.print(f"error: {message}", markup=False, highlight=False, soft_wrap=True)
    if messages:
        raise typer.Exit(1)


def check_target(path: Path | None) -> None:
    """Refuses a target file that cannot be written, before the work begins.

    Raises:
        InputError: its folder does not exist, or it is a folder itself.
    """
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise InputError(f"{path}: cannot be written: expected a file in an existing folder")


def write_json(path: Path | None, fields: object) -> None:
    """Writes figures to a file, or prints them as one line if it is `-`; None does nothing.

    Raises:
        InputError: it cannot be written.
    """
    if path is None:
        return
    if path == _PRINTED:
        print_json(fields)
        return
    write_target(path, json.dumps(fields, indent=1) + "\n")


def write_target(path: Path, content: str | bytes) -> None:
    """Writes the file that an option names.

    Raises:
        InputError: it cannot be written.
    """
    try:
        write_file(path, content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from error
