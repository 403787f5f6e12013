"""Executors beside each other and a bare echo server.

Every server runs on the same core and every load on another; rounds of all alternate, and figures
are medians. What one costs at rest (a wake-up now and then) is common to all.
"""

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from serving.bench.cores import split_cpus
from serving.bench.serve_measurement import (
    Loading,
    ServeFigures,
    measure_closed,
)
from serving.bench.server_under_test import echoing, served
from serving.bench.workload import BenchModel
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
        transport: grpcio or native.
        mode: the executor, or "echo".
        pairs: samples of a request.
        concurrency: requests in flight.
        requests_per_second: answered.
        p50_ms: latency.
        p99_ms: latency.
        cpu_ms: processor milliseconds of the server for each request.
        mean_batch: requests of a batch; None of an echo.
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
        workload: what is served.
        transports: grpcio, native or both.
        pairs: samples of a request, each in turn.
        concurrencies: requests in flight, each in turn.
        rounds: how often each is measured.
        seconds: of each measurement.
        progress: told how many measurements are done.
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
            for number in range(rounds):
                # Forwards and backwards, so that a drift of the machine meets all alike.
                order = list(servers) if number % 2 == 0 else list(reversed(servers))
                for key in order:
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
    def middle(value: Callable[[ServeFigures], float | None]) -> float:
        return median(found for one in figures if (found := value(one)) is not None)

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
