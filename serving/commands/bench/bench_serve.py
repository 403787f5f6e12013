"""Figures of a server under load."""

import math
from contextlib import ExitStack
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from statistics import median
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from kernels.wording import counted
from serving.bench.line_chart import latency_chart
from serving.bench.servers.serve import (
    Loading,
    ServeFigures,
    measure_closed,
    measure_open,
    measure_schedule,
)
from serving.bench.servers.server_under_test import ServerUnderTest, servers_of, target_of
from serving.bench.workloads.named import workload_named
from serving.bench.workloads.recorded import recorded_load
from serving.commands.bench.options import PairsOption, ServeOption, TowerPrecision, WorkloadOption
from serving.commands.bench.report import TEXT, Columns, Report, bench_command, counts_text
from serving.commands.console import check_target, write_target
from serving.commands.options.caller_options import TokenFileOption, caller_of
from sharded_infer.byte_sizes import three_digits
from sharded_infer.errors import InputError
from sharded_infer.progress import Progress
from sharded_infer.samples.record import local_record
from sharded_infer.specs.precision import Precision

_SWEEP = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 1.05)
_CAPACITY_CONCURRENCY = 16
_ROUNDS = 3
_PERCENTILES = dict.fromkeys(("p50", "p95", "p99", "p99.9"))
_COLUMNS: Columns = [
    ("load", TEXT, "load"),
    ("req/s", ",.1f", "requests_per_second"),
    ("pairs/s", ",.0f", "pairs_per_second"),
    *((name, three_digits, f"percentiles/{name}") for name in _PERCENTILES),
    ("errors", counts_text, "errors"),
    ("CPU", ".3g", "cpu_ms_per_request"),
    ("batch", ".3g", "mean_batch"),
    ("lag", ".3g", "generator_p99_lag_ms"),
]
_Rows = list[tuple[str, ServeFigures]]


class Distribution(StrEnum):
    """Due times of an open loop."""

    POISSON = "poisson"
    CONSTANT = "constant"


class LoadTransport(StrEnum):
    """Protocol of the requests."""

    GRPC = "grpc"
    HTTP = "http"


@bench_command
def bench_serve_command(
    progress: Progress,
    address: Annotated[
        str | None,
        typer.Option(help="A running server's host:port, without TLS; default: starts one."),
    ] = None,
    metrics_url: Annotated[
        str | None, typer.Option(help="URL of its metrics page, for the mean batch.")
    ] = None,
    token_file: TokenFileOption = None,
    workload: WorkloadOption = "ranking",
    precision: TowerPrecision = Precision.BF16,
    pairs: PairsOption = 16,
    requests_per_second: Annotated[
        float | None, typer.Option(help="Open loop: requests a second.", min=0.001)
    ] = None,
    transport: Annotated[
        LoadTransport,
        typer.Option(
            help="http: requests over HTTP/1.1 with binary tensors, in turns with gRPC, in a "
            "closed loop."
        ),
    ] = LoadTransport.GRPC,
    concurrency: Annotated[
        int | None, typer.Option(help="Closed loop: requests in flight; default: 16.", min=1)
    ] = None,
    distribution: Annotated[
        Distribution, typer.Option(help="Open loop: when requests are due.")
    ] = Distribution.POISSON,
    deadline_ms: Annotated[
        float | None, typer.Option(help="Deadline of each request, milliseconds.", min=0.001)
    ] = None,
    duration: Annotated[float, typer.Option(help="Seconds of load.", min=0.1)] = 10.0,
    replay: Annotated[
        str | None,
        typer.Option(
            metavar="RECORD",
            help="Recorded requests (serve --record), a folder or URL, at the times at which they "
            "came, those of the first --duration; needs --address.",
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model of --replay; needed if there are several.")
    ] = None,
    speed: Annotated[
        float, typer.Option(help="With --replay: 2 sends them in half the time.", min=1e-6)
    ] = 1.0,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Open loops from 10% to 105% of the capacity.")
    ] = False,
    chart: Annotated[
        Path | None, typer.Option(help="With --sweep: latency against load, as SVG.")
    ] = None,
    serve_option: ServeOption = None,
    tls: Annotated[bool, typer.Option("--tls", hidden=True)] = False,
    tls_files: Annotated[
        list[str] | None,
        typer.Option("--tls-ca", "--tls-certificate", "--tls-key", hidden=True),
    ] = None,
) -> Report:
    """Measure a server under load: throughput, latency percentiles, errors, processor time.

    The load comes from a separate process, on a separate core if there are two. In an open loop,
    latency counts from the time at which a request was due, so a stalled server is not favoured.
    """
    check_target(chart)
    if tls or tls_files:
        raise InputError(
            "--tls: the load generator speaks HTTP/2 without TLS alone: expected the address of a "
            "server without it, tokens or not"
        )
    if token_file is not None and address is None:
        raise InputError("--token-file needs --address")
    if requests_per_second is not None and concurrency is not None:
        raise InputError("--requests-per-second and --concurrency exclude each other")
    if replay is not None and (requests_per_second or concurrency or sweep or address is None):
        raise InputError(
            "--replay: recorded times: expected --address, and neither --requests-per-second, nor "
            "--concurrency, nor --sweep"
        )
    is_closed = not (replay or sweep or requests_per_second or deadline_ms)
    _check_transport(transport, address, metrics_url, is_closed=is_closed)
    chosen = workload_named(workload, precision)
    deadline_seconds = math.inf if deadline_ms is None else deadline_ms / 1e3
    loading = replace(Loading.of(chosen, pairs), deadline_seconds=deadline_seconds)
    poisson, flying = distribution is Distribution.POISSON, concurrency or _CAPACITY_CONCURRENCY
    with ExitStack() as stack:
        if address is None:
            options = {"": serve_option or ()}
            server = stack.enter_context(servers_of(chosen.publish, options))[""]
        else:
            caller = caller_of({"token": token_file})
            target = replace(target_of(address), token=caller.call.token)
            server = ServerUnderTest(target, metrics_url, caller=caller)
        notes: list[str] = []
        load = f"{workload}, {precision} tower, {pairs} pairs a request"
        if replay is not None:
            with local_record(replay, model) as folder:
                recorded = recorded_load(folder, model, speed=speed, seconds=duration)
            loading = replace(loading, messages=recorded.messages, pairs=recorded.pairs)
            figures, _ = measure_schedule(server, loading, recorded.schedule)
            rows, fields = [(counted(len(recorded.messages), "request"), figures)], asdict(figures)
            load = f"{replay} at {speed:g} times its pace, {recorded.pairs:.3g} pairs a request"
        elif sweep:
            rows, fields = _sweep(server, loading, duration, distribution, chart)
        elif requests_per_second is not None:
            figures, _ = measure_open(
                server, loading, rate=requests_per_second, seconds=duration, poisson=poisson
            )
            rows, fields = [(f"{requests_per_second:g}/s", figures)], asdict(figures)
        elif transport is LoadTransport.HTTP:
            rows, fields, notes = _beside_grpc(server, loading, flying, duration)
        else:
            figures, _ = measure_closed(server, loading, concurrency=flying, seconds=duration)
            rows, fields = [(f"{flying} in flight", figures)], asdict(figures)
    return Report(
        _COLUMNS,
        [_row(*row) for row in rows],
        [
            *notes,
            f"{load}; server on one core, load on another.",
            "Percentiles, processor time a request and the generator's p99 lag in milliseconds.",
        ],
        fields,
    )


def _check_transport(
    transport: LoadTransport, address: str | None, metrics_url: str | None, *, is_closed: bool
) -> None:
    if transport is not LoadTransport.HTTP:
        return
    if not is_closed:
        raise InputError(
            "--transport http: a closed loop without deadlines: expected neither --replay, nor "
            "--sweep, nor --requests-per-second, nor --deadline-ms"
        )
    if address is not None and metrics_url is None:
        raise InputError("--transport http with --address needs --metrics-url: its host and port")


def _row(load: str, figures: ServeFigures) -> dict[str, Any]:
    # Without an answer there are no latencies.
    return {"load": load, **asdict(figures), "percentiles": _PERCENTILES | figures.latency_ms}


def _sweep(
    server: ServerUnderTest,
    loading: Loading,
    seconds: float,
    distribution: Distribution,
    chart: Path | None,
) -> tuple[_Rows, dict[str, Any]]:
    """The capacity, and open loops at shares of it."""
    unhurried = replace(loading, deadline_seconds=math.inf)
    capacity, _ = measure_closed(
        server, unhurried, concurrency=_CAPACITY_CONCURRENCY, seconds=seconds
    )
    rows, points = [(f"{_CAPACITY_CONCURRENCY} in flight", capacity)], []
    poisson = distribution is Distribution.POISSON
    for share in _SWEEP:
        rate = capacity.requests_per_second * share
        figures, _ = measure_open(server, loading, rate=rate, seconds=seconds, poisson=poisson)
        rows.append((f"{share:.0%} of it", figures))
        points.append((rate, figures.latency_ms))
    if chart is not None:
        title = f"{loading.pairs} pairs a request, {distribution} arrivals"
        write_target(chart, latency_chart(title, points, capacity.requests_per_second))
    loads = [{"load": name, **asdict(figures)} for name, figures in rows[1:]]
    return rows, {"capacity": asdict(capacity), "loads": loads}


def _beside_grpc(
    server: ServerUnderTest, loading: Loading, concurrency: int, seconds: float
) -> tuple[_Rows, dict[str, Any], list[str]]:
    """Loads over gRPC and HTTP in turns, so that a slow phase of the machine affects both."""
    parts = urlsplit(server.metrics_url or "")
    host, port = parts.hostname or "", parts.port or 80
    http_target = replace(server.target, host=host, port=port, is_http=True)
    over_http = replace(server, target=http_target)
    rows, ratios = [], []
    for number in range(1, _ROUNDS + 1):
        grpc, http = (
            measure_closed(one, loading, concurrency=concurrency, seconds=seconds / _ROUNDS)[0]
            for one in (server, over_http)
        )
        rows += [(f"gRPC {number}", grpc), (f"HTTP {number}", http)]
        if grpc.latency_ms and http.latency_ms:
            ratios.append(http.latency_ms["p50"] / grpc.latency_ms["p50"])
    ratio = median(ratios) if ratios else None
    notes = []
    if ratio is not None:
        notes.append(
            f"HTTP's p50 is {ratio:.3g} times gRPC's, {concurrency} in flight: median of "
            f"{_ROUNDS} rounds, {min(ratios):.3g} to {max(ratios):.3g}."
        )
    fields = {
        "grpc": [asdict(figures) for _, figures in rows[::2]],
        "http": [asdict(figures) for _, figures in rows[1::2]],
        "p50_ratio": ratio,
    }
    return rows, fields, notes
