"""Serves published models."""

from typing import Any

import typer
from rich.table import Table

from kernels.wording import counted
from serving.commands.console import OUT, print_json
from serving.commands.lazy_group import load_by_name
from serving.commands.options.serve_options import (
    ConfigOption,
    JsonOption,
    PrintOption,
    declare_options,
    start_settings,
)
from serving.commands.progress_bars import progress_bars
from serving.config.server_config import ServerConfig
from serving.config.setting import declared_settings
from serving.process.ready import Ready
from serving.security.exposure import protection_of
from sharded_infer.byte_sizes import size_text

SETTINGS = declared_settings(ServerConfig)


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
        if as_json:
            print_json(ready.fields())
        else:
            _print_ready(ready, protection_of(settings))

    serve = load_by_name("serving.process.server:serve")
    serve(settings, on_ready=on_ready, progress=progress_bars)


def _print_ready(ready: Ready, protection: str) -> None:
    models = Table(
        "model",
        "version",
        "topology",
        "tables",
        "memory",
        "kernels",
        "products",
        "executor",
        box=None,
    )
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
        models.add_row("(none yet: clients load them)", *[""] * 7)
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
    OUT.print(models)
    for name, reason in ready.missing.items():
        OUT.print(f"NOT SERVED: {name}: {reason}")
    OUT.print(addresses)


declare_options(serve_command, SETTINGS)
