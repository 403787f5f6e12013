"""Serves lookups of one host of a plan."""

import os
from dataclasses import replace
from typing import Annotated, Any

import typer
from rich.table import Table

from serving.commands.console import OUT, print_json, say
from serving.commands.lazy_group import load_by_name
from serving.commands.options.serve_options import (
    ConfigOption,
    PrintOption,
    declare_options,
    print_settings,
    read_config,
    start_logs,
)
from serving.commands.progress_bars import progress_bars
from serving.config.server_config import ServerConfig
from serving.config.setting import declared_settings
from serving.config.shard_host_settings import SHARD_HOST_SETTINGS as SETTINGS
from serving.observability.trace_settings import trace_settings
from serving.security.exposure import protection_of
from serving.shard_host.ready import ShardHostReady
from sharded_infer.byte_sizes import size_text

NumberOption = Annotated[
    int,
    typer.Option(
        "--host-number",
        min=0,
        help="The host of the versions' plans whose ranks this process holds.",
    ),
]
JsonOption = Annotated[
    bool,
    typer.Option(
        "--json",
        help="When ready, print one line of JSON; with --print-config, print the settings as JSON.",
    ),
]


def serve_shards_command(
    context: typer.Context,
    host_number: NumberOption,
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
    settings, found = read_config(context, SETTINGS, config, values)
    if print_config:
        print_settings(SETTINGS, found, as_json=as_json)
        return
    start_logs(settings, declared_settings(ServerConfig), found)
    tracing = trace_settings(settings.trace_endpoint, None, os.environ)
    settings = replace(settings, tracing=tracing)

    def on_ready(ready: ShardHostReady) -> None:
        if as_json:
            print_json(ready.fields())
        else:
            _print_ready(ready, protection_of(settings))

    serve_shards = load_by_name("serving.shard_host.shard_host:serve_shards")
    serve_shards(settings, host_number, on_ready=on_ready, progress=progress_bars)


def _print_ready(ready: ShardHostReady, protection: str) -> None:
    table = Table("model", "version", "topology", "host", "tables", box=None)
    for held in ready.versions:
        table.add_row(
            held.model,
            str(held.version),
            held.topology,
            str(ready.host_number),
            size_text(held.table_bytes),
        )
    OUT.print(table)
    said = f"lookups at {ready.grpc_url}, metrics at {ready.metrics_url}; access: {protection}"
    say(said)


declare_options(serve_shards_command, SETTINGS)
