"""Serves published models."""

import os
from enum import StrEnum
from typing import Annotated

import typer

from serving.commands.console import OUT, print_json
from serving.commands.memory_choice import MemoryChoice
from serving.commands.versions import RepositoryOption
from serving.config import MIB, ServerConfig, is_loopback
from serving.logs import LogFormat, LogLevel, configure_logs
from serving.progress import progress_bars
from serving.server import Ready, serve
from serving.trace_settings import DEFAULT_TRACE_RATIO, trace_settings
from serving.version_policy import parse_policy
from sharded_infer.errors import InputError
from sharded_infer.sizes import size_text


class ExecutorChoice(StrEnum):
    """How requests are put together."""

    INLINE = "inline"
    BATCHED = "batched"
    AUTO = "auto"


class ControlChoice(StrEnum):
    """Who says which models are served."""

    POLL = "poll"
    EXPLICIT = "explicit"


class MetricsChoice(StrEnum):
    """How much is counted."""

    FULL = "full"
    BASIC = "basic"
    OFF = "off"


class TransportChoice(StrEnum):
    """What carries the RPCs."""

    GRPCIO = "grpcio"
    NATIVE = "native"


_DEFAULT_AGE_SECONDS = 60.0


def serve_command(
    repository: RepositoryOption,
    model: Annotated[
        list[str] | None,
        typer.Option("--model", "-m", help="Model to serve; may be repeated; default: all."),
    ] = None,
    model_control: Annotated[
        ControlChoice,
        typer.Option(help="poll: serve all models; explicit: those that clients load."),
    ] = ControlChoice.POLL,
    load_model: Annotated[
        list[str] | None,
        typer.Option(help="With explicit: model to begin with; may be repeated; *: all."),
    ] = None,
    follow: Annotated[
        str,
        typer.Option(
            help="Versions to serve: latest, latest:N, labels:NAME,NAME (the first is the "
            "default) or versions:N,N."
        ),
    ] = "latest",
    poll_seconds: Annotated[
        float,
        typer.Option(help="Time between looks for new versions; 0: only at SIGHUP.", min=0),
    ] = 5.0,
    spare_mib: Annotated[
        int,
        typer.Option(
            help="Memory that must stay free beside a version that comes later, MiB.", min=0
        ),
    ] = 256,
    topology: Annotated[
        str | None, typer.Option(help="Published plan to use; default: each version's first.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="gRPC port; 0 picks a free one.")] = 8001,
    metrics_port: Annotated[
        int, typer.Option(help="HTTP port: REST, live page, /metrics, /ready, /live; 0: any.")
    ] = 8002,
    metrics: Annotated[
        MetricsChoice,
        typer.Option(
            help="What is counted. off: what ModelStatistics reports; basic: latencies, batches "
            "and queues too; full: ranks, rows, scores and processes too."
        ),
    ] = MetricsChoice.FULL,
    workers: Annotated[
        int, typer.Option(help="Processes that share the port and the tables' memory.", min=1)
    ] = 1,
    executor: Annotated[
        ExecutorChoice | None,
        typer.Option(help="How requests are put together; default: as each model's spec says."),
    ] = None,
    max_delay_us: Annotated[
        int | None,
        typer.Option(help="Microseconds that batched models wait for more requests.", min=0),
    ] = None,
    memory: Annotated[
        MemoryChoice | None,
        typer.Option(
            help="map: tables in the page cache; huge: a copy in 2 MiB pages, faster to read at "
            "random; default: as each model's spec says."
        ),
    ] = None,
    transport: Annotated[
        TransportChoice,
        typer.Option(help="native: HTTP/2 outside the GIL (extra `native`), for small requests."),
    ] = TransportChoice.GRPCIO,
    slots: Annotated[
        int, typer.Option(help="Batches run side by side in a worker; 0: its cores.", min=0)
    ] = 0,
    threads: Annotated[
        int, typer.Option(help="RPCs of a worker that have a thread (grpcio).", min=1)
    ] = 32,
    max_concurrent_requests: Annotated[
        int, typer.Option(help="RPCs of a worker in progress; one more is refused unread.", min=1)
    ] = 128,
    max_streams: Annotated[
        int, typer.Option(help="Streams of a worker; one more is refused.", min=1)
    ] = 32,
    max_stream_requests: Annotated[
        int, typer.Option(help="Requests of a stream in progress; more are left unread.", min=1)
    ] = 64,
    max_queue_requests: Annotated[
        int, typer.Option(help="Requests of a worker that may wait for a slot.", min=1)
    ] = 1024,
    max_queue_samples: Annotated[
        int, typer.Option(help="Samples of the requests that wait.", min=1)
    ] = 2**20,
    max_queue_mib: Annotated[
        int, typer.Option(help="Bytes of the requests that wait, MiB.", min=1)
    ] = 256,
    shared_memory: Annotated[
        bool | None,
        typer.Option(
            "--shared-memory/--no-shared-memory",
            help="Inputs and outputs in shared memory: clients reach all of /dev/shm that this "
            "process may open; default: only where --host is a loopback address.",
            show_default=False,
        ),
    ] = None,
    max_batch: Annotated[int, typer.Option(help="Samples of a request.", min=1)] = 65536,
    max_message_mib: Annotated[int, typer.Option(help="Size of a message, MiB.", min=1)] = 64,
    max_connection_age: Annotated[
        float | None,
        typer.Option(
            help="Seconds after which clients connect anew, so that they spread over the workers; "
            f"0: never; default: {_DEFAULT_AGE_SECONDS:g} with several workers.",
            min=0,
        ),
    ] = None,
    grace_seconds: Annotated[
        float, typer.Option(help="Time between not being ready and draining, at SIGTERM.", min=0)
    ] = 2.0,
    drain_seconds: Annotated[
        float, typer.Option(help="Time for requests in flight after that.", min=0)
    ] = 30.0,
    log_format: Annotated[
        LogFormat, typer.Option(help="text, or json: one object a line, on the error stream.")
    ] = LogFormat.TEXT,
    log_level: Annotated[
        LogLevel, typer.Option(help="The least of the server's events that are logged.")
    ] = LogLevel.INFO,
    slow_request_ms: Annotated[
        float | None,
        typer.Option(
            help="Milliseconds from which on a request is logged with what made it slow; 0: none; "
            "default: twice its model's latency objective.",
            min=0,
        ),
    ] = None,
    trace_endpoint: Annotated[
        str | None,
        typer.Option(
            help="Collector of OpenTelemetry traces (OTLP over gRPC), such as "
            "http://localhost:4317 (extra `tracing`); default: as OTEL_EXPORTER_OTLP_ENDPOINT says."
        ),
    ] = None,
    trace_ratio: Annotated[
        float | None,
        typer.Option(
            help="Share of the requests that are traced, of those whose client has not decided; "
            f"default: as OTEL_TRACES_SAMPLER says, or {DEFAULT_TRACE_RATIO:g}.",
            min=0,
            max=1,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="When ready, print one line of JSON.")
    ] = False,
) -> None:
    """Serve published models over gRPC and REST (Open Inference Protocol), with metrics.

    Serves the latest version of each model, or what --follow says, and follows the repository: a
    new version is loaded aside and takes over when it has passed its checks; at SIGHUP it looks at
    once. Requests name a version by its number or label. Answers health checks and reflection. At
    SIGTERM it
    says that it is not ready, answers on for the grace time, then accepts no more, finishes what is
    in flight, and exits with 0.
    """
    if load_model and model_control is not ControlChoice.EXPLICIT:
        raise InputError("--load-model: expected with --model-control explicit, got poll")
    if model and model_control is ControlChoice.EXPLICIT:
        raise InputError("--model: expected with --model-control poll, got explicit: --load-model")
    configure_logs(log_format, log_level)
    age = max_connection_age
    if age is None and workers > 1 and transport is TransportChoice.GRPCIO:
        age = _DEFAULT_AGE_SECONDS
    config = ServerConfig(
        repository=repository,
        models=tuple(model or ()),
        explicit=model_control is ControlChoice.EXPLICIT,
        load_models=tuple(load_model or ()),
        follow=parse_policy(follow),
        poll_seconds=poll_seconds,
        spare_bytes=spare_mib * MIB,
        topology=topology,
        host=host,
        port=port,
        metrics_port=metrics_port,
        transport=transport.value,
        metrics=metrics.value,
        workers=workers,
        max_connection_age_seconds=age or None,
        executor=None if executor is None else executor.value,
        max_delay_us=max_delay_us,
        memory=None if memory is None else memory.value,
        slots=slots,
        threads=threads,
        max_concurrent_requests=max_concurrent_requests,
        max_streams=max_streams,
        max_stream_requests=max_stream_requests,
        max_queue_requests=max_queue_requests,
        max_queue_samples=max_queue_samples,
        max_queue_bytes=max_queue_mib * MIB,
        shared_memory=is_loopback(host) if shared_memory is None else shared_memory,
        max_batch=max_batch,
        max_message_bytes=max_message_mib * MIB,
        grace_seconds=grace_seconds,
        drain_seconds=drain_seconds,
        tracing=trace_settings(trace_endpoint, trace_ratio, os.environ),
        slow_request_ms=slow_request_ms,
    )

    def on_ready(ready: Ready) -> None:
        if as_json:
            print_json(ready.fields())
            return
        for served in ready.models:
            OUT.print(
                f"serving {served.name} version {served.version} on {served.topology}: "
                f"{size_text(served.table_bytes)} of tables ({served.memory}), "
                f"kernels {served.kernels}, "
                f"{served.executor} executor",
                highlight=False,
            )
        OUT.print(
            f"grpc     {ready.grpc_url} ({ready.workers} workers, {ready.transport})\n"
            f"metrics  {ready.metrics_url}",
            highlight=False,
        )

    serve(config, on_ready=on_ready, progress=progress_bars)
