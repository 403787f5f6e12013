"""Command groups that import a command on its call or its help, since imports take seconds."""

import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

from serving.config.setting import LARGEST
from sharded_infer.errors import InputError


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """A command's function, or a group's `typer.Typer`, imported by name: `module:attribute`.

    The summary is the first sentence of its docstring or help, whole at 80 columns.
    """

    name: str
    target: str
    summary: str


def load_by_name(target: str) -> Any:
    """Import `module:attribute`."""
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


def command_entries(
    package: str, prefix: str, commands: Mapping[str, tuple[str, str]]
) -> tuple[CommandEntry, ...]:
    """Entries by name: of a module's function `PREFIXNAME_command`, or of `module:attribute`."""
    entries = []
    for name, (module, summary) in commands.items():
        function = f"{prefix}{name.replace('-', '_')}_command"
        target = module if ":" in module else f"{module}:{function}"
        entries.append(CommandEntry(name, f"{package}.{target}", summary))
    return tuple(entries)


def lazy_group(*entries: CommandEntry) -> type[TyperGroup]:
    """Make a group class of these commands, for `typer.Typer(cls=...)`."""
    by_name = {entry.name: entry for entry in entries}

    class LazyGroup(TyperGroup):
        def __init__(self, **settings: Any) -> None:
            settings["commands"] = {
                entry.name: TyperCommand(entry.name, short_help=entry.summary) for entry in entries
            }
            super().__init__(**settings)

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            entry = by_name.get(cmd_name)
            return None if entry is None else _command_of(entry)

        def format_commands(self, ctx: Any, formatter: Any) -> None:
            TyperGroup(commands=dict(self.commands)).format_commands(ctx, formatter)

    return LazyGroup


def _command_of(entry: CommandEntry) -> Any:
    target = load_by_name(entry.target)
    if isinstance(target, typer.Typer):
        group = get_group(target)
        group.name, group.short_help = entry.name, entry.summary
        return group
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    alone.command(entry.name, short_help=entry.summary)(with_bounds(target))
    return get_command(alone)


def with_bounds(command: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a command to raise InputError for numbers that are not finite, or beyond C's int."""

    @functools.wraps(command)
    def bounded(*args: Any, **values: Any) -> Any:
        for name, value in values.items():
            for one in value if isinstance(value, list | tuple) else (value,):
                # All comparisons with NaN are false.
                if isinstance(one, int | float) and not -LARGEST <= one <= LARGEST:
                    is_long = isinstance(one, int) and abs(one) > 10**40
                    got = f"one of {len(str(abs(one)))} digits" if is_long else str(one)
                    raise InputError(
                        f"--{name.replace('_', '-')}: expected a number from {-LARGEST} to "
                        f"{LARGEST}, got {got}"
                    )
        return command(*args, **values)

    return bounded
