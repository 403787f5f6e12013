"""Compares executors with each other and with a bare echo server.

Every server runs on the same core and every load on another. Rounds alternate, and figures are
medians. Idle costs are common to all.
"""

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.servers.echo_server import echoing
from serving.bench.load.cores import split_cpus
from serving.bench.servers.serve import (
    Loading,
    ServeFigures,
    measure_closed,
    median_of,
)
from serving.bench.servers.server_under_test import served
from serving.bench.turns import in_turns
from serving.bench.workloads.workload import BenchModel
from sharded_infer.progress import Progress

MODES = ("inline", "batched", "auto")
ECHO = "echo"
_MESSAGES = 64
_CONNECTIONS = 16
_ECHO_THREADS = {"grpcio": 8, "native": 1}
_ECHO_RESPONSE_BYTES = 100


@dataclass(frozen=True, slots=True)
class Cell:
    """One server under one closed load, medians over the rounds.

    Attributes:
        mode: the executor, or "echo".
        cpu_ms: processor milliseconds of the server for each request.
        mean_batch: requests of a batch; None for an echo.
    """

    transport: str
    mode: str
    pairs: int
    concurrency: int
    requests_per_second: float
    p50_ms: float
    p99_ms: float
    cpu_ms: float
    mean_batch: float | None


def measure_matrix(
    workload: BenchModel,
    *,
    transports: Sequence[str],
    pairs: Sequence[int],
    concurrencies: Sequence[int],
    rounds: int,
    seconds: float,
    progress: Progress,
) -> list[Cell]:
    """Every executor and an echo server, over every transport, under closed loads.

    Args:
        pairs: samples of a request, measured in turn.
        concurrencies: requests in flight, measured in turn.
    """
    server_cpus, load_cpus = split_cpus()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="sharded-infer-bench-"))
        workload.publish(Path(folder))
        servers = {}
        for transport in transports:
            for mode in MODES:
                options = [f"--executor={mode}", f"--transport={transport}"]
                server = stack.enter_context(served(Path(folder), options, server_cpus))
                servers[transport, mode] = server
            servers[transport, ECHO] = stack.enter_context(
                echoing(transport, _ECHO_RESPONSE_BYTES, _ECHO_THREADS[transport], server_cpus)
            )
        cells = [(p, c) for p in pairs for c in concurrencies]
        total, done = len(cells) * rounds * len(servers), 0
        found: dict[tuple[str, str, int, int], list[ServeFigures]] = {}
        for size, flying in cells:
            loading = Loading(
                workload.messages(size, _MESSAGES), size, min(_CONNECTIONS, flying), load_cpus
            )
            for key in in_turns(list(servers), rounds):
                figures, _ = measure_closed(
                    servers[key], loading, concurrency=flying, seconds=seconds
                )
                found.setdefault((*key, size, flying), []).append(figures)
                done += 1
                progress("executors", done, total)
    return [_cell(*key, figures) for key, figures in found.items()]


def _cell(
    transport: str, mode: str, pairs: int, concurrency: int, figures: Sequence[ServeFigures]
) -> Cell:
    middle = partial(median_of, figures)
    return Cell(
        transport=transport,
        mode=mode,
        pairs=pairs,
        concurrency=concurrency,
        requests_per_second=middle(lambda one: one.requests_per_second),
        p50_ms=middle(lambda one: one.latency_ms.get("p50")),
        p99_ms=middle(lambda one: one.latency_ms.get("p99")),
        cpu_ms=middle(lambda one: one.cpu_ms_per_request),
        mean_batch=None if mode == ECHO else middle(lambda one: one.mean_batch_requests),
    )
