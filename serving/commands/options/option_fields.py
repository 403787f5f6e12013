"""Options that several commands share, as the fields of a dataclass."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields


def declare_fields(command: Callable[..., None], options: type) -> None:
    """Gives a command an option for each field: typer reads its signature.

    Args:
        command: takes its own options, which come last, and the fields as `**values`.
        options: a dataclass whose fields are `Annotated[type, typer.Option(...)]`.
    """
    shared = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=field.type,
        )
        for field in fields(options)
    ]
    own = [
        one.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for one in inspect.signature(command).parameters.values()
        if one.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    command.__signature__ = inspect.Signature([*shared, *own])  # type: ignore[attr-defined]
