"""Settings as options of a command."""

import inspect
from collections.abc import Mapping
from dataclasses import MISSING
from typing import Annotated, Any

import typer

from serving.setting import DeclaredSetting
from serving.version_policy import VersionPolicy


def option_of(setting: DeclaredSetting) -> inspect.Parameter:
    """The parameter from which typer makes a setting's option."""
    names = [setting.flag]
    kind: Any = setting.type
    if kind is bool:
        names = [f"{setting.flag}/--no-{setting.flag.removeprefix('--')}"]
    if setting.said.short is not None:
        names.append(setting.said.short)
    default = None if setting.default is MISSING else setting.default
    if setting.is_list:
        kind, default = list[str], None
    elif kind is VersionPolicy:
        kind, default = str, str(default)
    option = typer.Option(
        *names,
        help=setting.said.help,
        min=setting.least if kind in (int, float) else None,
        max=setting.most if kind in (int, float) else None,
        metavar=setting.said.metavar,
        show_default=default is not None,
    )
    return inspect.Parameter(
        setting.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind | None if default is None else kind, option],
    )


def given_flags(
    context: typer.Context, declared: Mapping[str, DeclaredSetting], values: Mapping[str, Any]
) -> dict[str, object]:
    """The settings that were said on the command line.

    Args:
        context: the command's.
        declared: the settings.
        values: of all options.
    """
    found = {}
    for name in declared:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            found[name] = values[name]
    return found
