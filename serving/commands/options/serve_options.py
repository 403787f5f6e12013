"""Settings as options of commands that serve, and the table that `--print-config` prints."""

import inspect
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import MISSING, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from serving.commands.console import print_result
from serving.commands.options.option_fields import add_options
from serving.config.server_config import ServerConfig
from serving.config.setting import DeclaredSetting, declared_settings, flag_of
from serving.config.setting_sources import (
    CONFIG_VARIABLE,
    DEFAULT,
    TOKENS_VARIABLE,
    Sourced,
    old_names,
    read_settings,
    unknown_variables,
)
from serving.config.version_policy import VersionPolicy
from serving.observability.log_lines import configure_logs
from serving.observability.trace_settings import trace_settings

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="TOML file of settings: each option below is a key, with _ for -; "
        f"default: {CONFIG_VARIABLE}.",
    ),
]
PrintOption = Annotated[
    bool,
    typer.Option(
        "--print-config", help="Print each setting's value and where it came from, and exit."
    ),
]
JsonOption = Annotated[
    bool,
    typer.Option(
        "--json",
        help="When ready, print one line of JSON; with --print-config, print the settings as JSON.",
    ),
]
_log = logging.getLogger("sharded_infer")


def declare_options(command: Callable[..., None], declared: Mapping[str, DeclaredSetting]) -> None:
    """Give a command, whose settings are `**values`, an option for each, by its signature."""
    options = [_option(setting, name) for setting in declared.values() for name in setting.names]
    add_options(command, options, before="print_config")


def start_settings(
    context: typer.Context,
    declared: Mapping[str, DeclaredSetting],
    file: Path | None,
    values: Mapping[str, Any],
    *,
    print_config: bool,
    as_json: bool,
) -> ServerConfig:
    """Read settings from flags, environment and file, and start logs and tracing by them.

    With `print_config`, print the settings and their sources, and raise Exit instead. Settings that
    are not `declared` keep their defaults. Raises InputError for a setting that is missing, unknown
    or wrong, with its name and source.
    """
    named = os.environ.get(CONFIG_VARIABLE)
    sourced = read_settings(
        declared,
        flags=_given_flags(context, declared, values),
        environment=os.environ,
        file=file or (Path(named) if named else None),
    )
    config = ServerConfig(**{name: one.value for name, one in sourced.items()})
    if print_config:
        _print_settings(declared, sourced, as_json=as_json)
        raise typer.Exit
    configure_logs(config.log_format, config.log_level)
    known = declared_settings(ServerConfig)
    for words in (*old_names(sourced), *unknown_variables(known, os.environ)):
        _log.warning(words)
    return replace(
        config,
        tokens=os.environ.get(TOKENS_VARIABLE) or None,
        tracing=trace_settings(config.trace_endpoint, config.trace_ratio, os.environ),
    )


def _option(setting: DeclaredSetting, name: str) -> inspect.Parameter:
    is_old = name != setting.name
    flag = flag_of(name)
    names = [flag]
    kind: Any = setting.type
    if kind is bool:
        names = [f"{flag}/--no-{flag.removeprefix('--')}"]
    if setting.said.short is not None and not is_old:
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
        hidden=is_old,
        show_default=default is not None,
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind | None if default is None else kind, option],
    )


def _given_flags(
    context: typer.Context, declared: Mapping[str, DeclaredSetting], values: Mapping[str, Any]
) -> dict[str, object]:
    flags = {}
    for name in (name for setting in declared.values() for name in setting.names):
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            flags[name] = values[name]
    return flags


def _print_settings(
    declared: Mapping[str, DeclaredSetting], sourced: Mapping[str, Sourced], *, as_json: bool
) -> None:
    fields = {
        name: {"value": declared[name].plain(one.value), "source": one.source}
        for name, one in sourced.items()
    }
    table = Table("setting", "value", "unit", "from", box=None)
    for name, one in sourced.items():
        setting = declared[name]
        style = "dim" if one.source == DEFAULT else ""
        table.add_row(name, setting.shown(one.value), setting.said.unit, one.source, style=style)
    print_result(fields, table, as_json=as_json)
