"""Groups of commands that are imported when one of them is called, or asked for its own help.

A group's help needs names and summaries only; what the commands need takes seconds to import.
"""

import importlib
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

from kernels.wording import did_you_mean, nearest
from serving.commands.option_bounds import with_bounds


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """A command or group that is imported by name.

    Attributes:
        name: as users type it.
        target: where it is, `module:attribute`: a command's function, or a group's `typer.Typer`.
        summary: the first sentence of its docstring or help, whole at 80 columns.
    """

    name: str
    target: str
    summary: str

    def load(self) -> Any:
        """Imports what the entry names."""
        return load_by_name(self.target)


def load_by_name(target: str) -> Any:
    """Imports something when it is needed; the one place where this is done for commands.

    Args:
        target: where it is, `module:attribute`.
    """
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


def lazy_group(*entries: CommandEntry) -> type[TyperGroup]:
    """The class of a group of these commands, for `typer.Typer(cls=...)`.

    Args:
        entries: the commands, in the order of the help.
    """
    by_name = {entry.name: entry for entry in entries}

    class LazyGroup(TyperGroup):
        """Imports a command when it is asked for."""

        def __init__(self, **settings: Any) -> None:
            """Holds the commands' names and summaries."""
            settings["commands"] = {
                entry.name: TyperCommand(entry.name, short_help=entry.summary) for entry in entries
            }
            super().__init__(**settings)
            self.suggest_commands = False  # ours are

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            """The command that is called."""
            try:
                return super().resolve_command(ctx, args)
            except Exception as error:
                # Typer's own copy of click raises them; it exports none of their classes.
                if isinstance(said := getattr(error, "message", None), str) and args:
                    hint = did_you_mean(args[0], self.commands)
                    error.message = said.rstrip(".") + hint if hint else said  # type: ignore[attr-defined]
                raise

        def invoke(self, ctx: Any) -> Any:
            """Runs a command."""
            try:
                return super().invoke(ctx)
            except Exception as error:
                if hasattr(error, "possibilities"):
                    error.possibilities = _near_options(error)
                raise

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            """A command as it is, imported."""
            entry = by_name.get(cmd_name)
            return None if entry is None else _command_of(entry)

        def format_commands(self, ctx: Any, formatter: Any) -> None:
            """Lists the commands in the help, without importing any."""
            TyperGroup(commands=dict(self.commands)).format_commands(ctx, formatter)

    return LazyGroup


def _near_options(error: Any) -> list[str]:
    """The option that an unknown one was probably meant to be."""
    known = [name for parameter in error.ctx.command.params for name in parameter.opts]
    near = nearest(error.option_name, known)
    return [] if near is None else [near]


def _command_of(entry: CommandEntry) -> Any:
    target = entry.load()
    if isinstance(target, typer.Typer):
        group = get_group(target)
        group.name, group.short_help = entry.name, entry.summary
        return group
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    alone.command(entry.name, short_help=entry.summary)(with_bounds(target))
    return get_command(alone)
