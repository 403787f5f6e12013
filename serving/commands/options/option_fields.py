"""Options that several commands share, as the fields of a dataclass."""

import inspect
from collections.abc import Callable, Collection
from dataclasses import MISSING, Field, fields


def declare_fields(
    command: Callable[..., None],
    *options: type,
    optional: Collection[str] = (),
    before: str | None = None,
) -> None:
    """Give a command an option for each field, through the signature that typer reads.

    Args:
        command: takes its own options, and the fields as `**values`.
        options: dataclasses whose fields are `Annotated[type, typer.Option(...)]`.
        optional: fields that may be left out, though they have no default.
        before: the command's own option that follows the fields; None: its first.
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
    at = next((n for n, one in enumerate(own) if one.name == before), 0)
    command.__signature__ = inspect.Signature([*own[:at], *shared, *own[at:]])  # type: ignore[attr-defined]


def _default(field: "Field[object]", *, is_optional: bool) -> object:
    if field.default is not MISSING:
        return field.default
    return None if is_optional else inspect.Parameter.empty
