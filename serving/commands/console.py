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
from sharded_infer.pages.text import visible
from sharded_infer.regular_file import write_file

# In a file's place: the end of what a command prints.
_PRINTED = Path("-")
_PIPED_COLUMNS = 160  # tables in a pipe or a file are not cut to a terminal's width


class _Plain(Console):
    """Shows names as they are: neither markup nor control characters of theirs take effect."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False)

    def render_str(self, text: str, **settings: Any) -> Text:
        """A text of a line or a table's cell, as it is printed."""
        return super().render_str(visible(text), **settings)


class _Output(_Plain):
    """Looks at where it prints each time, not when it is made."""

    @property
    def size(self) -> ConsoleDimensions:
        """Columns and lines to print in."""
        if self.is_terminal or "COLUMNS" in os.environ:
            return super().size
        return ConsoleDimensions(_PIPED_COLUMNS, super().size.height)

    @size.setter
    def size(self, new_size: tuple[int, int]) -> None:
        """Fixes the size, as `Console.size` does."""
        self._width, self._height = new_size


OUT = _Output()
ERRORS = _Plain(stderr=True)


def print_json(fields: object) -> None:
    """Prints one line of JSON, at once: a script may be waiting for it."""
    print(json.dumps(fields), flush=True)  # noqa: T201 - output for scripts


def print_errors(messages: Sequence[str]) -> None:
    """Ends a command that went on after what is wrong: says all of it; nothing if all is well.

    Raises:
        Exit: with 1, if there is anything.
    """
    for message in messages:
        ERRORS.print(f"error: {message}", markup=False, highlight=False, soft_wrap=True)
    if messages:
        raise typer.Exit(1)


def check_target(path: Path | None) -> None:
    """Refuses a file that cannot be made, before the work whose result it is to hold.

    Raises:
        InputError: its folder does not exist, or it is a folder itself.
    """
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise InputError(f"{path}: cannot be written: expected a file in an existing folder")


def write_json(path: Path | None, fields: object) -> None:
    """Writes figures to a file, if there is one, or prints them as one line, if it is `-`.

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
