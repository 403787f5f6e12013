"""Overload of a server with several times its capacity, from a separate core."""

from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from serving.bench.load.cores import split_cpus
from serving.bench.servers.serve import (
    Loading,
    ServeFigures,
    measure_closed,
    measure_open,
)
from serving.bench.servers.server_under_test import servers_of
from serving.bench.workloads.workload import BenchModel


@dataclass(frozen=True, slots=True)
class OverloadFigures:
    """Figures of a server under several times its capacity, with deadlines.

    Attributes:
        capacity: requests a second, in a closed loop without deadlines: the median of measurements
            before the overload and after it, because a shared machine changes in a minute.
        goodput: requests a second answered in time.
        errors: requests by status code.
        refusal_cpu_ms: processor time of the server for a refusal: for requests whose deadline
            cannot be met, measured alone.
        answer_cpu_ms: the same for an answer, at capacity.
        overload_refusal_cpu_ms: processor time under overload beyond `answer_cpu_ms` for each
            answer, divided by refusals. It includes the cost of refusals to answers (caches,
            switches).
        resident_before: bytes, after the capacity's load.
        resident_after: bytes, after the overload.
        normal_p50_ms: latency of single requests before the overload.
        recovered_p50_ms: the same from one second after the overload.
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
    pairs: int,
    times: float,
    deadline_seconds: float,
    seconds: float,
    calm_seconds: float = 4.0,
) -> OverloadFigures:
    """Offer a multiple of the capacity, which is measured before and after for `calm_seconds`."""
    server_cpus, load_cpus = split_cpus()
    calm = Loading.of(workload, pairs, load_cpus)
    hurried = replace(calm, deadline_seconds=deadline_seconds)
    with servers_of(workload.publish, {"": ()}, server_cpus) as servers:
        server = servers[""]

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
        unreachable = replace(
            calm, messages=workload.messages(pairs, len(calm.messages), timeout_us=1)
        )
        refused, _ = measure_closed(server, unreachable, concurrency=16, seconds=calm_seconds)
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
