"""Serves lookups of one host of a plan."""

from typing import Annotated, Any

import typer
from rich.table import Table

from serving.commands.console import OUT, print_json, say
from serving.commands.lazy_group import load_by_name
from serving.commands.options.serve_options import (
    ConfigOption,
    JsonOption,
    PrintOption,
    declare_options,
    start_settings,
)
from serving.commands.progress_bars import progress_bars
from serving.config.shard_host_settings import SHARD_HOST_SETTINGS as SETTINGS
from serving.security.exposure import protection_of
from serving.shard_host.ready import ShardHostReady
from sharded_infer.byte_sizes import size_text


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
    settings = start_settings(
        context, SETTINGS, config, values, print_config=print_config, as_json=as_json
    )

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
