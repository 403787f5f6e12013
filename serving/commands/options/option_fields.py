"""Options that several commands share, as the fields of a dataclass."""

import inspect
from collections.abc import Callable, Collection
from dataclasses import MISSING, Field, fields


def declare_fields(
    command: Callable[..., None], *options: type, optional: Collection[str] = ()
) -> None:
    """Gives a command an option for each field: typer reads its signature.

    Args:
        command: takes its own options, which come last, and the fields as `**values`.
        options: dataclasses whose fields are `Annotated[type, typer.Option(...)]`.
        optional: fields that the command may go without, though they have no default.
    """
    shared = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=_default(field, is_optional=field.name in optional),
            annotation=field.type,
        )
        for one in options
        for field in fields(one)
    ]
    own = [
        one.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for one in inspect.signature(command).parameters.values()
        if one.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    command.__signature__ = inspect.Signature([*shared, *own])  # type: ignore[attr-defined]


def _default(field: "Field[object]", *, is_optional: bool) -> object:
    if field.default is not MISSING:
        return field.default
    return None if is_optional else inspect.Parameter.empty
