"""Executors beside queueing theory: servers on one core, the load on another."""

import heapq
from collections import defaultdict
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.bench.servers.serve import (
    Loading,
    measure_closed,
    measure_open,
    percentiles_ms,
)
from serving.bench.servers.server_under_test import servers_of
from serving.bench.turns import Turns
from serving.bench.workloads.workload import BenchModel
from serving.commands.bench.report import TEXT, Report


def measure_queueing(workload: BenchModel, pairs: int, share: float, turns: Turns) -> Report:
    """Measure inline and auto under Poisson and constant arrivals, beside a perfect queue.

    The share is of the inline executor's lowest capacity of the rounds. Figures are of the round
    with the median ratio of the p99s. The queue is first come, first served, with one
    server, the same arrivals, and service times as measured one request at a time.
    """
    loading = Loading.of(workload, pairs)
    options = {mode: [f"--executor={mode}"] for mode in ("inline", "auto")}
    found: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    with servers_of(workload.publish, options) as servers:
        closed = partial(measure_closed, servers["inline"], loading, concurrency=16)
        capacity = min(closed(seconds=turns.seconds / 2)[0].requests_per_second for _ in range(2))
        variants = list(product(servers, ("poisson", "constant")))
        for number, (mode, distribution) in turns.of(variants, "arrivals"):
            # Service times of just before, on the same server: the machine is not the same all day.
            _, alone = measure_closed(
                servers[mode], loading, concurrency=1, seconds=turns.seconds / 3
            )
            figures, result = measure_open(
                servers[mode],
                loading,
                rate=capacity * share,
                seconds=turns.seconds,
                poisson=distribution == "poisson",
                seed=number + 1,
            )
            services = alone.latency[alone.codes == 0]
            simulated = simulate_queue(result.scheduled, services, servers=1)
            found[mode, distribution].append(
                {
                    "mode": mode,
                    "distribution": distribution,
                    "rate": capacity * share,
                    "latency_ms": figures.latency_ms,
                    "predicted_ms": percentiles_ms(simulated),
                }
            )
    middle = [sorted(ones, key=_p99_ratio)[turns.rounds // 2] for ones in found.values()]
    return Report(
        [
            ("executor", TEXT), ("arrivals", TEXT), ("requests/s", ",.0f"),
            ("p50 ms", ".3g"), ("p99", ".3g"), ("p99 of a queue", ".3g"), ("ratio", ".2f"),
        ],
        [
            (
                one["mode"], one["distribution"], one["rate"], one["latency_ms"]["p50"],
                one["latency_ms"]["p99"], one["predicted_ms"]["p99"], _p99_ratio(one),
            )
            for one in middle
        ],
        [],
        middle,
    )  # fmt: skip


def _p99_ratio(figures: dict[str, Any]) -> float:
    return float(figures["latency_ms"]["p99"] / figures["predicted_ms"]["p99"])


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
