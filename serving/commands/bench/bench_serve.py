"""Figures of a server under load."""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from statistics import median
from typing import Annotated
from urllib.parse import urlsplit

import typer

from kernels.machine import machine
from serving.bench.charts.latency_chart import LoadPoint, latency_chart
from serving.bench.load.cores import split_cpus
from serving.bench.servers.serve import Loading, ServeFigures, measure_closed, measure_open
from serving.bench.servers.server_under_test import ServerUnderTest, servers_of, target_of
from serving.bench.workloads.workload import workload_named
from serving.commands.bench.report import TEXT, print_table
from serving.commands.console import OUT, check_target, write_json, write_target
from serving.commands.options.caller_options import TokenFileOption, caller_of
from serving.commands.options.json_option import JsonFileOption
from serving.commands.options.tower_precision import TowerPrecision
from sharded_infer.byte_sizes import three_digits
from sharded_infer.errors import InputError
from sharded_infer.specs.precision import Precision

_SWEEP = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 1.05)
_CAPACITY_CONCURRENCY = 16
_ROUNDS = 3


class Distribution(StrEnum):
    """Due times of an open loop."""

    POISSON = "poisson"
    CONSTANT = "constant"


class LoadTransport(StrEnum):
    """Protocol of the requests."""

    GRPC = "grpc"
    HTTP = "http"


def bench_serve_command(
    address: Annotated[
        str | None,
        typer.Option(help="A running server's host:port, without TLS; default: starts one."),
    ] = None,
    metrics_url: Annotated[
        str | None, typer.Option(help="URL of its metrics page, for the mean batch.")
    ] = None,
    token_file: TokenFileOption = None,
    workload: Annotated[
        str,
        typer.Option(
            help="Model and requests: ranking (26 tables), ragged (100 inputs) or dlrm-v2 "
            "(MLPerf's, with tables cut to 2 million rows)."
        ),
    ] = "ranking",
    precision: TowerPrecision = Precision.BF16,
    pairs: Annotated[int, typer.Option(help="Samples of a request.", min=1)] = 16,
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
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Open loops from 10% to 105% of the capacity.")
    ] = False,
    chart: Annotated[
        Path | None, typer.Option(help="With --sweep: latency against load, as SVG.")
    ] = None,
    serve_option: Annotated[
        list[str] | None,
        typer.Option(
            help="Option for the server that is started, such as --serve-option=--workers=2."
        ),
    ] = None,
    json_file: JsonFileOption = None,
    tls: Annotated[bool, typer.Option("--tls", hidden=True)] = False,
    tls_files: Annotated[
        list[str] | None,
        typer.Option("--tls-ca", "--tls-certificate", "--tls-key", hidden=True),
    ] = None,
) -> None:
    """Measure a server under load: throughput, latency percentiles, errors, processor time.

    The load comes from a separate process, on a separate core if there are two. In an open loop,
    latency counts from the time at which a request was due, so a stalled server is not favoured.
    """
    check_target(json_file)
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
    if transport is LoadTransport.HTTP and (sweep or requests_per_second or deadline_ms):
        raise InputError(
            "--transport http: a closed loop without deadlines: expected neither --sweep, nor "
            "--requests-per-second, nor --deadline-ms"
        )
    if transport is LoadTransport.HTTP and address is not None and metrics_url is None:
        raise InputError("--transport http with --address needs --metrics-url: its host and port")
    chosen = workload_named(workload).in_precision(precision)
    server_cpus, load_cpus = split_cpus()
    loading = replace(
        Loading.of(chosen, pairs, load_cpus),
        deadline_seconds=None if deadline_ms is None else deadline_ms / 1e3,
    )
    with ExitStack() as stack:
        if address is None:
            options = {"": serve_option or ()}
            server = stack.enter_context(servers_of(chosen.publish, options, server_cpus))[""]
        else:
            caller = caller_of({"token": token_file})
            target = replace(target_of(address), token=caller.call.token)
            server = ServerUnderTest(target, metrics_url, caller=caller)
        if sweep:
            fields = _sweep(server, loading, duration, distribution, chart)
        elif requests_per_second is not None:
            poisson = distribution is Distribution.POISSON
            figures, _ = measure_open(
                server, loading, rate=requests_per_second, seconds=duration, poisson=poisson
            )
            _print([(f"{requests_per_second:g}/s", figures)])
            fields = asdict(figures)
        elif transport is LoadTransport.HTTP:
            fields = _beside_grpc(server, loading, concurrency or _CAPACITY_CONCURRENCY, duration)
        else:
            flying = concurrency or _CAPACITY_CONCURRENCY
            figures, _ = measure_closed(server, loading, concurrency=flying, seconds=duration)
            _print([(f"{flying} in flight", figures)])
            fields = asdict(figures)
    cpus = (
        f"server on {len(server_cpus)}, load on {len(load_cpus)} of {os.cpu_count()} cores, "
        f"{machine().class_text}"
    )
    OUT.print(
        f"{workload}, {precision} tower, {pairs} pairs a request; {cpus}.\n"
        "Percentiles, processor time a request and the generator's p99 lag in milliseconds.",
        highlight=False,
    )
    write_json(json_file, fields)


def _sweep(
    server: ServerUnderTest,
    loading: Loading,
    seconds: float,
    distribution: Distribution,
    chart: Path | None,
) -> dict[str, object]:
    unhurried = replace(loading, deadline_seconds=None)
    capacity, _ = measure_closed(
        server, unhurried, concurrency=_CAPACITY_CONCURRENCY, seconds=seconds
    )
    rows = [(f"{_CAPACITY_CONCURRENCY} in flight", capacity)]
    points = []
    for share in _SWEEP:
        rate = capacity.requests_per_second * share
        figures, _ = measure_open(
            server,
            loading,
            rate=rate,
            seconds=seconds,
            poisson=distribution is Distribution.POISSON,
        )
        rows.append((f"{share:.0%} of it", figures))
        points.append(LoadPoint(rate, figures.latency_ms))
    _print(rows)
    if chart is not None:
        title = f"{loading.pairs} pairs a request, {distribution} arrivals"
        write_target(chart, latency_chart(title, points, capacity.requests_per_second))
    return {
        "capacity": asdict(capacity),
        "loads": [{"load": name, **asdict(figures)} for name, figures in rows[1:]],
    }


def _beside_grpc(
    server: ServerUnderTest, loading: Loading, concurrency: int, seconds: float
) -> dict[str, object]:
    """Loads over gRPC and HTTP in turns, so that a slow phase of the machine affects both."""
    parts = urlsplit(server.metrics_url or "")
    over_http = replace(
        server,
        target=replace(
            server.target, host=parts.hostname or "", port=parts.port or 80, is_http=True
        ),
    )
    rows: list[tuple[str, ServeFigures]] = []
    for number in range(1, _ROUNDS + 1):
        for name, one in (("gRPC", server), ("HTTP", over_http)):
            figures, _ = measure_closed(
                one, loading, concurrency=concurrency, seconds=seconds / _ROUNDS
            )
            rows.append((f"{name} {number}", figures))
    _print(rows)
    grpc, http = [f for _, f in rows[::2]], [f for _, f in rows[1::2]]
    ratios = [
        h.latency_ms["p50"] / g.latency_ms["p50"]
        for g, h in zip(grpc, http, strict=True)
        if g.latency_ms and h.latency_ms
    ]
    ratio = median(ratios) if ratios else None
    if ratio is not None:
        OUT.print(
            f"HTTP's p50 is {ratio:.3g} times gRPC's, {concurrency} in flight: median of "
            f"{_ROUNDS} rounds, {min(ratios):.3g} to {max(ratios):.3g}.",
            highlight=False,
        )
    return {
        "grpc": [asdict(figures) for figures in grpc],
        "http": [asdict(figures) for figures in http],
        "p50_ratio": ratio,
    }


def _print(rows: Sequence[tuple[str, ServeFigures]]) -> None:
    percentiles = ("p50", "p95", "p99", "p99.9")
    print_table(
        [
            ("load", TEXT), ("req/s", ",.1f"), ("pairs/s", ",.0f"),
            *((name, three_digits) for name in percentiles),
            ("errors", TEXT), ("CPU", ".3g"), ("batch", ".3g"), ("lag", ".3g"),
        ],
        (
            (
                name, one.requests_per_second, one.pairs_per_second,
                *map(one.latency_ms.get, percentiles),
                ", ".join(f"{n} {code}" for code, n in one.errors.items()) or "0",
                one.cpu_ms_per_request, one.mean_batch, one.generator_p99_lag_ms,
            )
            for name, one in rows
        ),
    )  # fmt: skip
