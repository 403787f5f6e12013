"""Executors beside each other, a bare echo server, and what queueing theory allows.

Every server runs on the same core and every load on another; rounds of all alternate, and figures
are medians. What one costs at rest (a wake-up now and then) is common to all.
"""

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from serving.bench.cores import split_cpus
from serving.bench.serve_measurement import (
    Loading,
    ServeFigures,
    measure_closed,
    measure_open,
    percentiles_ms,
    simulate_queue,
)
from serving.bench.server_under_test import ServerUnderTest, echoing, served
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


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """An open load at a share of the capacity, beside what a perfect queue gives.

    Attributes:
        mode: the executor.
        distribution: of the arrivals: poisson or constant.
        rate: requests a second.
        latency_ms: measured percentiles.
        predicted_ms: percentiles of a first-come-first-served queue with as many servers as cores,
            the same arrivals, and service times as measured one request at a time.
    """

    mode: str
    distribution: str
    rate: float
    latency_ms: dict[str, float]
    predicted_ms: dict[str, float]


def measure_queueing(
    workload: BenchModel,
    *,
    transport: str,
    pairs: int,
    share: float,
    rounds: int,
    seconds: float,
    progress: Progress,
) -> list[QueueFigures]:
    """Inline and auto under Poisson and constant arrivals.

    Args:
        workload: what is served.
        transport: grpcio or native.
        pairs: samples of a request.
        share: of the inline executor's capacity, the lowest of the rounds.
        rounds: how often each is measured; the round of the median p99 is returned.
        seconds: of each measurement.
        progress: told how many measurements are done.
    """
    server_cpus, load_cpus = split_cpus()
    loading = Loading(workload.messages(pairs, _MESSAGES), pairs, _CONNECTIONS, load_cpus)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="sharded-infer-bench-"))
        workload.publish(Path(folder))
        servers = {
            mode: stack.enter_context(
                served(
                    Path(folder), [f"--executor={mode}", f"--transport={transport}"], server_cpus
                )
            )
            for mode in ("inline", "auto")
        }
        capacity = min(
            measure_closed(servers["inline"], loading, concurrency=16, seconds=seconds / 2)[
                0
            ].requests_per_second
            for _ in range(2)
        )
        rate = capacity * share
        found: dict[tuple[str, str], list[QueueFigures]] = {}
        done, total = 0, rounds * 4
        for number in range(rounds):
            for distribution in ("poisson", "constant"):
                for mode in ("inline", "auto") if number % 2 == 0 else ("auto", "inline"):
                    figures = _queueing(
                        servers[mode],
                        loading,
                        mode=mode,
                        distribution=distribution,
                        rate=rate,
                        seconds=seconds,
                        cores=len(server_cpus),
                        seed=number,
                    )
                    found.setdefault((mode, distribution), []).append(figures)
                    done += 1
                    progress("arrivals", done, total)
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


@dataclass(frozen=True, slots=True)
class OverloadFigures:
    """A server offered several times what it can answer, with deadlines.

    Attributes:
        pairs: samples of a request.
        deadline_ms: of each request.
        capacity: requests a second, in a closed loop without deadlines: the median of measurements
            before the overload and after it, because a shared machine changes in a minute.
        offered: requests a second.
        goodput: requests a second answered in time.
        errors: requests by status code.
        refusal_cpu_ms: processor milliseconds of the server for a refusal: those of a request whose
            deadline cannot be met, measured by itself.
        answer_cpu_ms: and for an answer, at capacity.
        overload_refusal_cpu_ms: under overload, what the server burnt beyond `answer_cpu_ms` for
            each answer, by refusal: with what refusals cost the answers (caches, switches).
        resident_before: bytes, after the capacity's load.
        resident_after: bytes, after the overload.
        normal_p50_ms: latency of single requests before.
        recovered_p50_ms: and from one second after the overload on.
        generator_p99_lag_ms: of the overload's generator.
    """

    pairs: int
    deadline_ms: float
    capacity: float
    offered: float
    goodput: float
    errors: dict[str, int]
    refusal_cpu_ms: float
    answer_cpu_ms: float
    overload_refusal_cpu_ms: float
    resident_before: int
    resident_after: int
    normal_p50_ms: float
    recovered_p50_ms: float
    generator_p99_lag_ms: float


def measure_overload(
    workload: BenchModel,
    *,
    transport: str,
    pairs: int,
    times: float,
    deadline_seconds: float,
    seconds: float,
    calm_seconds: float = 4.0,
) -> OverloadFigures:
    """Offers several times the capacity, with deadlines.

    Args:
        workload: what is served.
        transport: grpcio or native.
        pairs: samples of a request.
        times: of the capacity that is offered.
        deadline_seconds: of each request.
        seconds: of the overload.
        calm_seconds: of each measurement of the capacity, before and after.
    """
    server_cpus, load_cpus = split_cpus()
    messages = workload.messages(pairs, _MESSAGES)
    calm = Loading(messages, pairs, _CONNECTIONS, load_cpus)
    hurried = Loading(messages, pairs, _CONNECTIONS, load_cpus, deadline_seconds)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="sharded-infer-bench-"))
        workload.publish(Path(folder))
        options = [f"--transport={transport}"]
        server = stack.enter_context(served(Path(folder), options, server_cpus))

        def at_capacity() -> list[ServeFigures]:
            return [
                measure_closed(server, calm, concurrency=16, seconds=calm_seconds)[0]
                for _ in range(3)
            ]

        capacities = at_capacity()
        expected = median(one.requests_per_second for one in capacities)
        normal, _ = measure_closed(server, calm, concurrency=1, seconds=calm_seconds / 2)
        # A deadline that the cost table knows to be too short, KServe's, so that the client waits
        # for the refusal.
        hopeless = Loading(
            workload.messages(pairs, _MESSAGES, timeout_us=1), pairs, _CONNECTIONS, load_cpus
        )
        refused, _ = measure_closed(server, hopeless, concurrency=16, seconds=calm_seconds)
        before = server.counts().resident_bytes or 0
        figures, result = measure_open(
            server, hurried, rate=expected * times, seconds=seconds, poisson=True
        )
        after = server.counts().resident_bytes or 0
        recovered, _ = measure_closed(
            server, calm, concurrency=1, seconds=calm_seconds / 2, warm_up_seconds=1.0
        )
        capacities += at_capacity()
    answer_cpu_ms = median([one.cpu_ms_per_request or 0.0 for one in capacities])
    answered = int(np.count_nonzero(result.codes == 0))
    refusals_cpu_ms = (figures.cpu_ms_per_request or 0.0) * len(result.codes)
    refusals_cpu_ms -= answered * answer_cpu_ms
    in_time = (result.codes == 0) & (result.latency <= deadline_seconds)
    return OverloadFigures(
        pairs=pairs,
        deadline_ms=deadline_seconds * 1e3,
        capacity=median(one.requests_per_second for one in capacities),
        offered=figures.offered_per_second,
        goodput=float(np.count_nonzero(in_time)) / result.window_seconds,
        errors=figures.errors,
        refusal_cpu_ms=refused.cpu_ms_per_request or 0.0,
        answer_cpu_ms=answer_cpu_ms,
        overload_refusal_cpu_ms=refusals_cpu_ms / max(1, len(result.codes) - answered),
        resident_before=before,
        resident_after=after,
        normal_p50_ms=normal.latency_ms["p50"],
        recovered_p50_ms=recovered.latency_ms["p50"],
        generator_p99_lag_ms=figures.generator_p99_lag_ms,
    )
