"""Executors beside queueing theory: servers on one core, the load on another."""

import heapq
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from serving.bench.load.cores import split_cpus
from serving.bench.servers.serve import (
    Loading,
    measure_closed,
    measure_open,
    percentiles_ms,
)
from serving.bench.servers.server_under_test import ServerUnderTest, servers_of
from serving.bench.turns import in_turns
from serving.bench.workloads.workload import BenchModel
from sharded_infer.progress import Progress


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """Figures of an open load at a share of the capacity, beside a perfect queue.

    Predicted is a first-come-first-served queue with as many servers as cores, the same arrivals,
    and service times as measured one request at a time.
    """

    mode: str
    distribution: str
    rate: float
    latency_ms: dict[str, float]
    predicted_ms: dict[str, float]


def measure_queueing(
    workload: BenchModel,
    *,
    pairs: int,
    share: float,
    rounds: int,
    seconds: float,
    progress: Progress,
) -> list[QueueFigures]:
    """Measure inline and auto under Poisson and constant arrivals.

    The share is of the inline executor's lowest capacity of the rounds. Figures are of the round
    with the median p99.
    """
    server_cpus, load_cpus = split_cpus()
    loading = Loading.of(workload, pairs, load_cpus)
    options = {mode: [f"--executor={mode}"] for mode in ("inline", "auto")}
    with servers_of(workload.publish, options, server_cpus) as servers:
        capacity = min(
            measure_closed(servers["inline"], loading, concurrency=16, seconds=seconds / 2)[
                0
            ].requests_per_second
            for _ in range(2)
        )
        rate = capacity * share
        found: dict[tuple[str, str], list[QueueFigures]] = {}
        variants = list(product(servers, ("poisson", "constant")))
        for done, (mode, distribution) in enumerate(in_turns(variants, rounds)):
            figures = _queueing(
                servers[mode],
                loading,
                mode=mode,
                distribution=distribution,
                rate=rate,
                seconds=seconds,
                cores=len(server_cpus),
                seed=done // len(variants),
            )
            found.setdefault((mode, distribution), []).append(figures)
            progress("arrivals", done + 1, rounds * len(variants))
    middle = rounds // 2
    return [
        sorted(ones, key=lambda one: one.latency_ms["p99"] / one.predicted_ms["p99"])[middle]
        for ones in found.values()
    ]


def _queueing(
    server: ServerUnderTest,
    loading: Loading,
    *,
    mode: str,
    distribution: str,
    rate: float,
    seconds: float,
    cores: int,
    seed: int,
) -> QueueFigures:
    # Service times of just before, on the same server: the machine is not the same all day.
    _, alone = measure_closed(server, loading, concurrency=1, seconds=seconds / 3)
    figures, result = measure_open(
        server,
        loading,
        rate=rate,
        seconds=seconds,
        poisson=distribution == "poisson",
        seed=seed + 1,
    )
    services = alone.latency[alone.codes == 0]
    simulated = simulate_queue(result.scheduled, services, cores)
    return QueueFigures(mode, distribution, rate, figures.latency_ms, percentiles_ms(simulated))


def simulate_queue(
    arrivals: NDArray[np.float64], services: NDArray[np.float64], servers: int, seed: int = 1
) -> NDArray[np.float64]:
    """Seconds from arrival to end in a first-come-first-served queue, as of a perfect server.

    Arrivals ascend in seconds; service times are sampled at random. So many servers run at once.
    """
    drawn = np.random.default_rng(seed).choice(services, len(arrivals))
    free = [0.0] * servers
    ends = np.empty(len(arrivals))
    for number, (arrival, service) in enumerate(zip(arrivals, drawn, strict=True)):
        end = max(arrival, heapq.heappop(free)) + service
        heapq.heappush(free, end)
        ends[number] = end
    return ends - arrivals
