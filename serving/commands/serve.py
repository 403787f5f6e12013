"""Serves published models, or lookups of one host of a plan; settings are options."""

import inspect
import logging
import os
from collections.abc import Mapping
from dataclasses import MISSING, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from kernels.wording import counted
from serving.commands.console import print_result, progress_bars
from serving.commands.lazy_group import load_by_name
from serving.commands.options.option_fields import add_options
from serving.config.server_config import ServerConfig
from serving.config.setting import DeclaredSetting, declared_settings, flag_of
from serving.config.setting_sources import (
    CONFIG_VARIABLE,
    DEFAULT,
    TOKENS_VARIABLE,
    old_names,
    read_settings,
    unknown_variables,
)
from serving.config.shard_host_settings import SHARD_HOST_SETTINGS
from serving.config.version_policy import VersionPolicy
from serving.observability.log_lines import configure_logs
from serving.observability.trace_settings import trace_settings
from serving.process.ready import Ready
from serving.security.exposure import protection_of
from serving.shard_host.ready import ShardHostReady
from sharded_infer.byte_sizes import size_text

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
SETTINGS = declared_settings(ServerConfig)
_MODELS = ("model", "version", "topology", "tables", "memory", "kernels", "products", "executor")


def serve_command(
    context: typer.Context,
    config: ConfigOption = None,
    print_config: PrintOption = False,
    as_json: JsonOption = False,
    **values: Any,
) -> None:
    """Serve published models over gRPC and REST (Open Inference Protocol), with metrics.

    Serves the latest version of each model, or what --follow says, and watches the repository. A
    new version is loaded in the background and takes over when it has passed its checks. At SIGHUP
    the server reads the repository and the tokens at once. Requests name a version by its number or
    label. Health checks and reflection are answered. At SIGTERM the server reports not ready,
    answers on for the grace time, accepts no more, finishes what is in flight, and exits with 0.

    Each setting is an option, a variable SHARDED_INFER_NAME, and a key of the file --config. The
    first of these that is set wins (docs/configuration.md).
    """
    settings = _start_settings(
        context, SETTINGS, config, values, print_config=print_config, as_json=as_json
    )

    def on_ready(ready: Ready) -> None:
        print_result(ready.fields(), *_shown(ready, protection_of(settings)), as_json=as_json)

    serve = load_by_name("serving.process.server:serve")
    serve(settings, on_ready=on_ready, progress=progress_bars)


def _shown(ready: Ready, protection: str) -> list[str | Table]:
    models = Table(*_MODELS, box=None)
    for served in ready.models:
        models.add_row(
            served.name,
            str(served.version),
            served.topology,
            size_text(served.table_bytes),
            served.memory,
            ", ".join(f"{device} {kernel}" for device, kernel in served.kernels.items()),
            served.products or "on devices",
            served.executor,
        )
    if not (ready.models or ready.missing):
        models.add_row("(none yet: clients load them)")
    addresses = Table("address", "", "", box=None)
    addresses.add_row("gRPC", ready.grpc_url, counted(ready.workers, "worker"))
    if ready.unix_url is not None:
        addresses.add_row("gRPC", ready.unix_url, "")
    if ready.http_unix_socket is not None:
        addresses.add_row("HTTP", f"unix:{ready.http_unix_socket}", "")
    if ready.admin_url is not None:
        addresses.add_row("admin", ready.admin_url, "RPCs that change the server")
    addresses.add_row("metrics", ready.metrics_url, "")
    addresses.add_row("access", protection, "")
    missing = [f"NOT SERVED: {name}: {reason}" for name, reason in ready.missing.items()]
    return [models, *missing, addresses]


def serve_shards_command(
    context: typer.Context,
    host_number: Annotated[
        int,
        typer.Option(min=0, help="The host of the versions' plans whose ranks this process holds."),
    ],
    config: ConfigOption = None,
    print_config: PrintOption = False,
    as_json: JsonOption = False,
    **values: Any,
) -> None:
    """Answer lookups of one host of a plan.

    The servers, `sharded-infer serve --shard-hosts`, have the towers. This process maps only the
    rows of its host's ranks, of the two newest versions of each model, and watches the repository.
    Health checks are answered, metrics and probes over HTTP. At SIGTERM it finishes the lookups in
    flight and exits with 0.

    The settings are those of `serve` (docs/configuration.md).
    """
    settings = _start_settings(
        context, SHARD_HOST_SETTINGS, config, values, print_config=print_config, as_json=as_json
    )

    def on_ready(ready: ShardHostReady) -> None:
        table = Table("model", "version", "topology", "host", "tables", box=None)
        host = str(ready.host_number)
        for held in ready.versions:
            size = size_text(held.table_bytes)
            table.add_row(held.model, str(held.version), held.topology, host, size)
        text = (
            f"lookups at {ready.grpc_url}, metrics at {ready.metrics_url}; access: "
            f"{protection_of(settings)}"
        )
        print_result(ready.fields(), table, text, as_json=as_json)

    serve_shards = load_by_name("serving.shard_host.shard_host:serve_shards")
    serve_shards(settings, host_number, on_ready=on_ready, progress=progress_bars)


def _start_settings(
    context: typer.Context,
    declared: Mapping[str, DeclaredSetting],
    file: Path | None,
    values: Mapping[str, Any],
    *,
    print_config: bool,
    as_json: bool,
) -> ServerConfig:
    """Read settings from flags, environment and file, and start logs and tracing by them.

    With `print_config`, print the settings and their sources, and raise Exit instead. Raises
    InputError for a setting that is missing, unknown or wrong, with its name and source.
    """
    named = os.environ.get(CONFIG_VARIABLE)
    flags = {}
    for name in (name for setting in declared.values() for name in setting.names):
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            flags[name] = values[name]
    sourced = read_settings(
        declared,
        flags=flags,
        environment=os.environ,
        file=file or (Path(named) if named else None),
    )
    config = ServerConfig(**{name: one.value for name, one in sourced.items()})
    if print_config:
        fields = {
            name: {"value": declared[name].plain(one.value), "source": one.source}
            for name, one in sourced.items()
        }
        table = Table("setting", "value", "unit", "from", box=None)
        for name, one in sourced.items():
            unit, style = declared[name].said.unit, "dim" if one.source == DEFAULT else ""
            table.add_row(name, declared[name].shown(one.value), unit, one.source, style=style)
        print_result(fields, table, as_json=as_json)
        raise typer.Exit
    configure_logs(config.log_format, config.log_level)
    for words in (*old_names(sourced), *unknown_variables(SETTINGS, os.environ)):
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


for _command, _declared in (
    (serve_command, SETTINGS),
    (serve_shards_command, SHARD_HOST_SETTINGS),
):
    _options = [_option(setting, name) for setting in _declared.values() for name in setting.names]
    add_options(_command, _options, before="print_config")
