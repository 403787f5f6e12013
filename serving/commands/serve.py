"""Serves published models."""

import logging
from typing import Annotated

import typer

from serving.commands.console import OUT, print_json
from serving.commands.versions import RepositoryOption
from serving.config import MIB, ServerConfig
from serving.progress import progress_bars
from serving.server import Ready, serve
from sharded_infer.sizes import size_text


def serve_command(
    repository: RepositoryOption,
    model: Annotated[
        list[str] | None,
        typer.Option("--model", "-m", help="Model to serve; may be repeated; default: all."),
    ] = None,
    topology: Annotated[
        str | None, typer.Option(help="Published plan to use; default: each version's first.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="gRPC port; 0 picks a free one.")] = 8001,
    metrics_port: Annotated[int, typer.Option(help="HTTP port of /metrics; 0: any.")] = 8002,
    threads: Annotated[int, typer.Option(help="Requests answered side by side.", min=1)] = 8,
    max_concurrent_requests: Annotated[
        int, typer.Option(help="Requests in progress or waiting; one more is refused.", min=1)
    ] = 1024,
    max_batch: Annotated[int, typer.Option(help="Samples of a request.", min=1)] = 65536,
    max_message_mib: Annotated[int, typer.Option(help="Size of a message, MiB.", min=1)] = 64,
    drain_seconds: Annotated[
        float, typer.Option(help="Time for requests in flight after SIGTERM.", min=0)
    ] = 30.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="When ready, print one line of JSON.")
    ] = False,
) -> None:
    """Serve published models over gRPC (Open Inference Protocol), with Prometheus metrics.

    Serves the latest version of each model. Answers health checks and reflection. SIGTERM stops
    accepting, finishes what is in flight, and exits with 0.
    """
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("sharded_infer").setLevel(logging.INFO)
    config = ServerConfig(
        repository=repository,
        models=tuple(model or ()),
        topology=topology,
        host=host,
        port=port,
        metrics_port=metrics_port,
        threads=threads,
        max_concurrent_requests=max_concurrent_requests,
        max_batch=max_batch,
        max_message_bytes=max_message_mib * MIB,
        drain_seconds=drain_seconds,
    )

    def on_ready(ready: Ready) -> None:
        if as_json:
            print_json(ready.fields())
            return
        for served in ready.models:
            OUT.print(
                f"serving {served.name} version {served.version} on {served.topology}: "
                f"{size_text(served.table_bytes)} of tables, kernels {served.kernels}",
                highlight=False,
            )
        OUT.print(f"grpc     {ready.grpc_url}\nmetrics  {ready.metrics_url}", highlight=False)

    with progress_bars() as progress:
        serve(config, on_ready=on_ready, progress=progress)
