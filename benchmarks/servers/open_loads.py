"""Servers under open loads: beside queueing theory, and at several times their capacity.

Servers run on one core, and loads on another.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from operator import itemgetter
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2

from serving.bench.servers.serve import (
    Loading,
    ServeFigures,
    measure_closed,
    measure_open,
    percentiles_ms,
)
from serving.bench.servers.server_under_test import servers_of
from serving.bench.turns import Turns
from serving.bench.workloads.workload import Workload
from serving.commands.bench.report import TEXT, Report, counts_text
from sharded_infer.byte_sizes import size_text


def measure_queueing(workload: Workload, pairs: int, share: float, turns: Turns) -> Report:
    """Measure inline and auto under Poisson and constant arrivals, beside a perfect queue.

    The share is of the inline executor's lowest capacity of the rounds. Figures are of the round
    with the median ratio of the p99s. The queue is first come, first served, with one
    server, the same arrivals, and service times as measured one request at a time.
    """
    loading = Loading.of(workload, pairs)
    options = {mode: [f"--executor={mode}"] for mode in ("inline", "auto")}
    with servers_of(workload.publish, options) as servers:
        closed = partial(measure_closed, servers["inline"], loading, concurrency=16)
        capacity = min(closed(seconds=turns.seconds / 2)[0].requests_per_second for _ in range(2))

        def measured(mode: str, distribution: str, number: int) -> dict[str, Any]:
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
            predicted_ms = percentiles_ms(
                simulate_queue(result.scheduled, alone.latency[alone.codes == 0])
            )
            return {
                "mode": mode,
                "distribution": distribution,
                "rate": capacity * share,
                "latency_ms": figures.latency_ms,
                "predicted_ms": predicted_ms,
                "p99_ratio": figures.latency_ms["p99"] / predicted_ms["p99"],
            }

        kinds = product(servers, ("poisson", "constant"))
        rounds = turns.of({kind: partial(measured, *kind) for kind in kinds}, "arrivals")
    middle = [
        sorted(ones, key=itemgetter("p99_ratio"))[turns.rounds // 2] for ones in rounds.values()
    ]
    return Report(
        [
            ("executor", TEXT, "mode"),
            ("arrivals", TEXT, "distribution"),
            ("requests/s", ",.0f", "rate"),
            ("p50 ms", ".3g", "latency_ms/p50"),
            ("p99", ".3g", "latency_ms/p99"),
            ("p99 of a queue", ".3g", "predicted_ms/p99"),
            ("ratio", ".2f", "p99_ratio"),
        ],
        middle,
        [],
        middle,
    )


def simulate_queue(
    arrivals: NDArray[np.float64], services: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Seconds from arrival to end in a first-come-first-served queue, as of a perfect server.

    Arrivals ascend in seconds; service times are sampled at random.
    """
    drawn = np.random.default_rng(1).choice(services, len(arrivals))
    ends, end = np.empty(len(arrivals)), 0.0
    for number, (arrival, service) in enumerate(zip(arrivals, drawn, strict=True)):
        end = ends[number] = max(arrival, end) + service
    return ends - arrivals


def measure_overloads(
    workload: Workload,
    *,
    sizes: Sequence[int],
    times: float,
    deadline_seconds: float,
    seconds: float,
    calm_seconds: float = 4.0,
) -> Report:
    """Offer a multiple of the capacity, which is measured before and after for `calm_seconds`.

    Figures of a size, where names do not say them:
        capacity: requests a second, in a closed loop without deadlines: the median of measurements
            before the overload and after it, because a shared machine changes in a minute.
        refusal_cpu_ms: of the server, for requests whose deadline cannot be met, measured alone.
        overload_refusal_cpu_ms: processor time under overload beyond `answer_cpu_ms` for each
            answer, divided by refusals. It includes the cost of refusals to answers.
        recovered_p50_ms: of single requests from one second after the overload.
    """
    loads = [
        _overload(workload, pairs, times, deadline_seconds, seconds, calm_seconds)
        for pairs in sizes
    ]
    return Report(
        [
            ("pairs", "d", "pairs"),
            ("deadline ms", "g", "deadline_ms"),
            ("capacity/s", ",.0f", "capacity"),
            ("offered/s", ",.0f", "offered"),
            ("in time/s", ",.0f", "goodput"),
            ("of capacity", ".2f", "of_capacity"),
            ("CPU ms an answer", ".3g", "answer_cpu_ms"),
            ("a refusal", ".3g", "refusal_cpu_ms"),
            ("under load", ".3g", "overload_refusal_cpu_ms"),
            ("memory before", size_text, "resident_before"),
            ("after", size_text, "resident_after"),
            ("p50 ms before", ".3g", "normal_p50_ms"),
            ("1 s after", ".3g", "recovered_p50_ms"),
            ("lag p99 ms", ".3g", "generator_p99_lag_ms"),
            ("errors", counts_text, "errors"),
        ],
        loads,
        [],
        loads,
    )


def _within_a_microsecond(message: bytes) -> bytes:
    """The request with a timeout that the cost table knows to be too short.

    It is KServe's, so that the client waits for the refusal.
    """
    request = service_pb2.ModelInferRequest.FromString(message)
    request.parameters["timeout"].int64_param = 1
    return bytes(request.SerializeToString())


def _overload(
    workload: Workload,
    pairs: int,
    times: float,
    deadline_seconds: float,
    seconds: float,
    calm_seconds: float,
) -> dict[str, Any]:
    calm = Loading.of(workload, pairs)
    hurried = replace(calm, deadline_seconds=deadline_seconds)
    unreachable = replace(calm, messages=[_within_a_microsecond(one) for one in calm.messages])
    with servers_of(workload.publish, {"": ()}) as servers:
        server = servers[""]

        def closed(loading: Loading, concurrency: int, seconds: float) -> ServeFigures:
            return measure_closed(server, loading, concurrency=concurrency, seconds=seconds)[0]

        capacities = [closed(calm, 16, calm_seconds) for _ in range(3)]
        expected = median(one.requests_per_second for one in capacities)
        normal = closed(calm, 1, calm_seconds / 2)
        refused = closed(unreachable, 16, calm_seconds)
        before = server.counts().resident_bytes or 0
        figures, result = measure_open(server, hurried, rate=expected * times, seconds=seconds)
        after = server.counts().resident_bytes or 0
        recovered, _ = measure_closed(
            server, calm, concurrency=1, seconds=calm_seconds / 2, warm_up_seconds=1.0
        )
        capacities += [closed(calm, 16, calm_seconds) for _ in range(3)]
    answer_cpu_ms = median([one.cpu_ms_per_request or 0.0 for one in capacities])
    answered = int(np.count_nonzero(result.codes == 0))
    refusals_cpu_ms = (figures.cpu_ms_per_request or 0.0) * len(result.codes)
    refusals_cpu_ms -= answered * answer_cpu_ms
    in_time = (result.codes == 0) & (result.latency <= deadline_seconds)
    capacity = median(one.requests_per_second for one in capacities)
    goodput = float(np.count_nonzero(in_time)) / result.window_seconds
    return {
        "pairs": pairs,
        "deadline_ms": deadline_seconds * 1e3,
        "capacity": capacity,
        "offered": figures.offered_per_second,
        "goodput": goodput,
        "of_capacity": goodput / capacity,
        "errors": figures.errors,
        "refusal_cpu_ms": refused.cpu_ms_per_request or 0.0,
        "answer_cpu_ms": answer_cpu_ms,
        "overload_refusal_cpu_ms": refusals_cpu_ms / max(1, len(result.codes) - answered),
        "resident_before": before,
        "resident_after": after,
        "normal_p50_ms": normal.latency_ms["p50"],
        "recovered_p50_ms": recovered.latency_ms["p50"],
        "generator_p99_lag_ms": figures.generator_p99_lag_ms,
    }
