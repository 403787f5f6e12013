"""Serves published models."""

import inspect
import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from serving.commands.console import print_json
from serving.commands.lazy_group import load_by_name
from serving.commands.ready_table import print_ready
from serving.commands.setting_options import given_flags, option_of
from serving.commands.setting_table import print_settings
from serving.config import ServerConfig
from serving.logs import configure_logs
from serving.progress import progress_bars
from serving.protection import protection_of
from serving.ready import Ready
from serving.setting import declared_settings
from serving.setting_sources import (
    CONFIG_VARIABLE,
    TOKENS_VARIABLE,
    read_settings,
    unknown_variables,
)
from serving.trace_settings import trace_settings

SETTINGS = declared_settings(ServerConfig)
_log = logging.getLogger("sharded_infer")

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
    bool, typer.Option("--json", help="When ready, print one line of JSON; so --print-config.")
]


def serve_command(
    context: typer.Context,
    config: ConfigOption = None,
    print_config: PrintOption = False,
    as_json: JsonOption = False,
    **values: Any,
) -> None:
    """Serve published models over gRPC and REST (Open Inference Protocol), with metrics.

    Serves the latest version of each model, or what --follow says, and follows the repository: a
    new version is loaded aside and takes over when it has passed its checks; at SIGHUP it looks at
    once, and reads the tokens again. Requests name a version by its number or label. Answers health
    checks and reflection. At SIGTERM it says that it is not ready, answers on for the grace time,
    then accepts no more, finishes what is in flight, and exits with 0.

    Each setting is an option, a variable SHARDED_INFER_NAME, and a key of the file --config; the
    first of these that says something holds (docs/configuration.md).
    """
    named = os.environ.get(CONFIG_VARIABLE)
    found = read_settings(
        SETTINGS,
        flags=given_flags(context, SETTINGS, values),
        environment=os.environ,
        file=config or (Path(named) if named else None),
    )
    settings = ServerConfig(**{name: one.value for name, one in found.items()})
    if print_config:
        print_settings(SETTINGS, found, as_json=as_json)
        return
    configure_logs(settings.log_format, settings.log_level)
    for words in unknown_variables(SETTINGS, os.environ):
        _log.warning(words)
    settings = replace(
        settings,
        tracing=trace_settings(settings.trace_endpoint, settings.trace_ratio, os.environ),
        tokens=os.environ.get(TOKENS_VARIABLE) or None,
    )

    def on_ready(ready: Ready) -> None:
        if as_json:
            print_json(ready.fields())
        else:
            print_ready(ready, protection_of(settings))

    serve = load_by_name("serving.server:serve")
    serve(settings, on_ready=on_ready, progress=progress_bars)


def _declare_options() -> None:
    """Gives the command an option for each setting: typer reads its signature."""
    own = inspect.signature(serve_command).parameters
    fixed = [one for one in own.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    first, *rest = [
        one if one.name == "context" else one.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for one in fixed
    ]
    options = [option_of(setting) for setting in SETTINGS.values()]
    signature = inspect.Signature([first, rest[0], *options, *rest[1:]])
    serve_command.__signature__ = signature  # type: ignore[attr-defined]


_declare_options()
