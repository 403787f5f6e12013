"""Options that are declared elsewhere than in a command's signature, which typer reads."""

import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import MISSING, fields


def add_options(
    command: Callable[..., None], options: Sequence[inspect.Parameter], before: str | None = None
) -> None:
    """Give a command, whose `**values` they are, options before one of its own; None: first."""
    own = [
        one.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for one in inspect.signature(command).parameters.values()
        if one.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    at = next((n for n, one in enumerate(own) if one.name == before), 0)
    command.__signature__ = inspect.Signature([*own[:at], *options, *own[at:]])  # type: ignore[attr-defined]


def declare_fields(
    command: Callable[..., None],
    *options: type,
    optional: Collection[str] = (),
    before: str | None = None,
) -> None:
    """Give a command an option for each field of dataclasses; see `add_options`.

    Fields are `Annotated[type, typer.Option(...)]`; `optional` ones may be left out, though they
    have no default.
    """
    shared = []
    for field in (field for kind in options for field in fields(kind)):
        default = field.default
        if default is MISSING:
            default = None if field.name in optional else inspect.Parameter.empty
        parameter = inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default)
        shared.append(parameter.replace(annotation=field.type))
    add_options(command, shared, before)
