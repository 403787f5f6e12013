"""One load on one server: rates, latencies, errors, processor time, batches."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self

import numpy as np
from numpy.typing import NDArray

from serving.bench.load.generator import constant_schedule, poisson_schedule, run_closed, run_open
from serving.bench.load.http_generator import run_http_closed
from serving.bench.load.process import run_in_process
from serving.bench.load.result import LoadResult
from serving.bench.load.target import Target
from serving.bench.servers.server_under_test import ServerUnderTest
from serving.bench.workloads.workload import Workload
from sharded_infer.errors import InputError

_MESSAGES = 64
_PERCENTILES = {"p50": 50.0, "p95": 95.0, "p99": 99.0, "p99.9": 99.9}
_NOT_LET_IN = frozenset({"UNAUTHENTICATED", "PERMISSION_DENIED"})


@dataclass(frozen=True, slots=True)
class ServeFigures:
    """Figures of a load; rates are of requests that were answered OK while requests began.

    Processor time is the server's, for any outcome; None if its processes are not ours. Batches are
    None without a metrics page.
    """

    requests_per_second: float
    pairs_per_second: float
    offered_per_second: float
    latency_ms: dict[str, float]
    errors: dict[str, int]
    cpu_ms_per_request: float | None
    mean_batch: float | None
    mean_batch_requests: float | None
    generator_p99_lag_ms: float
    generator_cpu_share: float


@dataclass(frozen=True, slots=True)
class Loading:
    """Serialized requests, sent in turn, and their pairs, of each or in the mean."""

    messages: Sequence[bytes]
    pairs: float
    connections: int = 16
    deadline_seconds: float = math.inf

    @classmethod
    def of(cls, workload: Workload, pairs: int) -> Self:
        """A load of random requests for a workload."""
        return cls(workload.messages(pairs, _MESSAGES), pairs)


def measure_closed(
    server: ServerUnderTest,
    loading: Loading,
    *,
    concurrency: int,
    seconds: float,
    warm_up_seconds: float = 0.5,
) -> tuple[ServeFigures, LoadResult]:
    """Keep a number of requests in flight; InputError if unreachable or all are refused."""
    load = partial(
        run_http_closed,
        server.target,
        loading.messages,
        concurrency=concurrency,
        seconds=seconds,
        warm_up_seconds=warm_up_seconds,
        keep_responses=False,
    )
    if not server.target.is_http:
        load = partial(
            run_closed,
            *load.args,
            **load.keywords,
            connections=min(loading.connections, concurrency),
            deadline_seconds=loading.deadline_seconds,
        )
    return _measure(server, load, loading)


def measure_open(
    server: ServerUnderTest,
    loading: Loading,
    *,
    rate: float,
    seconds: float,
    poisson: bool = True,
    seed: int = 1,
) -> tuple[ServeFigures, LoadResult]:
    """Send requests at due times, Poisson or even; InputError if unreachable or all are refused."""
    schedule = (
        poisson_schedule(rate, seconds, seed) if poisson else constant_schedule(rate, seconds)
    )
    return measure_schedule(server, loading, schedule)


def measure_schedule(
    server: ServerUnderTest, loading: Loading, schedule: NDArray[np.float64]
) -> tuple[ServeFigures, LoadResult]:
    """Send requests at times, float64 seconds from the start; InputError as `measure_open`."""
    load = partial(
        run_open,
        server.target,
        loading.messages,
        connections=loading.connections,
        schedule=schedule,
        deadline_seconds=loading.deadline_seconds,
        keep_responses=False,
    )
    return _measure(server, load, loading)


def _measure(
    server: ServerUnderTest, load: Callable[[], LoadResult], loading: Loading
) -> tuple[ServeFigures, LoadResult]:
    before = server.counts()
    result = run_in_process(load)
    _check_let_in(result, server.target)
    after = server.counts()
    batches = after.batches - before.batches
    cpu = None
    if before.cpu_seconds is not None and after.cpu_seconds is not None and len(result.codes):
        # Requests of the warm-up use the processor, too.
        everything = max(len(result.codes), int(result.connection_calls.sum()))
        cpu = (after.cpu_seconds - before.cpu_seconds) * 1e3 / everything

    def mean(total: float) -> float | None:
        return total / batches if batches else None

    figures = ServeFigures(
        requests_per_second=result.ok_per_second,
        pairs_per_second=result.ok_per_second * loading.pairs,
        offered_per_second=len(result.codes) / max(result.window_seconds, 1e-9),
        latency_ms=percentiles_ms(result.latency[result.codes == 0]),
        errors={code: count for code, count in result.counts.items() if code != "OK"},
        cpu_ms_per_request=cpu,
        mean_batch=mean(after.batch_samples - before.batch_samples),
        mean_batch_requests=mean(after.batch_requests - before.batch_requests),
        generator_p99_lag_ms=result.p99_lag_seconds * 1e3,
        generator_cpu_share=result.cpu_share,
    )
    return figures, result


def _check_let_in(result: LoadResult, target: Target) -> None:
    """Raise InputError if the server refused every call, since refusals are fast."""
    counts = result.counts
    refusals = sorted(_NOT_LET_IN & counts.keys())
    if refusals and "OK" not in counts:
        words = "; ".join(result.errors.values())
        raise InputError(f"{target.authority}: {', '.join(refusals)}: {words}")


def percentiles_ms(latencies: NDArray[np.float64]) -> dict[str, float]:
    """Percentiles, mean and maximum of latencies given in seconds; empty without latencies."""
    if not len(latencies):
        return {}
    # Only latencies that occurred, without interpolation.
    values = np.percentile(latencies, list(_PERCENTILES.values()), method="inverted_cdf")
    seconds = dict(zip(_PERCENTILES, values.tolist(), strict=True))
    seconds |= {"mean": float(latencies.mean()), "max": float(latencies.max())}
    return {name: of_one * 1e3 for name, of_one in seconds.items()}
