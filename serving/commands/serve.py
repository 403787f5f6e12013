"""Serves published models, or lookups of one host of a plan."""

from typing import Annotated, Any

import typer
from rich.table import Table

from kernels.wording import counted
from serving.commands.console import print_result, progress_bars
from serving.commands.lazy_group import load_by_name
from serving.commands.options.serve_options import (
    ConfigOption,
    JsonOption,
    PrintOption,
    declare_options,
    start_settings,
)
from serving.config.server_config import ServerConfig
from serving.config.setting import declared_settings
from serving.config.shard_host_settings import SHARD_HOST_SETTINGS
from serving.process.ready import Ready
from serving.security.exposure import protection_of
from serving.shard_host.ready import ShardHostReady
from sharded_infer.byte_sizes import size_text

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
    settings = start_settings(
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
    settings = start_settings(
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


declare_options(serve_command, SETTINGS)
declare_options(serve_shards_command, SHARD_HOST_SETTINGS)
