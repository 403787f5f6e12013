"""Overload of a server with several times its capacity, from a separate core."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np

from serving.bench.servers.serve import (
    Loading,
    ServeFigures,
    measure_closed,
    measure_open,
)
from serving.bench.servers.server_under_test import servers_of
from serving.bench.workloads.workload import BenchModel
from serving.commands.bench.report import Form, Report
from sharded_infer.byte_sizes import size_text


def measure_overloads(
    workload: BenchModel,
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
    columns: dict[str, tuple[str, Form]] = {
        "pairs": ("pairs", "d"),
        "deadline_ms": ("deadline ms", "g"),
        "capacity": ("capacity/s", ",.0f"),
        "offered": ("offered/s", ",.0f"),
        "goodput": ("in time/s", ",.0f"),
        "of_capacity": ("of capacity", ".2f"),
        "answer_cpu_ms": ("CPU ms an answer", ".3g"),
        "refusal_cpu_ms": ("a refusal", ".3g"),
        "overload_refusal_cpu_ms": ("under load", ".3g"),
        "resident_before": ("memory before", size_text),
        "resident_after": ("after", size_text),
        "normal_p50_ms": ("p50 ms before", ".3g"),
        "recovered_p50_ms": ("1 s after", ".3g"),
        "generator_p99_lag_ms": ("lag p99 ms", ".3g"),
        "errors": ("errors", lambda n: ", ".join(f"{n[code]:,} {code}" for code in n)),
    }
    return Report(
        list(columns.values()), [[one[key] for key in columns] for one in loads], [], loads
    )


def _overload(
    workload: BenchModel,
    pairs: int,
    times: float,
    deadline_seconds: float,
    seconds: float,
    calm_seconds: float,
) -> dict[str, Any]:
    calm = Loading.of(workload, pairs)
    hurried = replace(calm, deadline_seconds=deadline_seconds)
    # A deadline that the cost table knows to be too short, KServe's, so that the client waits for
    # the refusal.
    unreachable = replace(calm, messages=workload.messages(pairs, len(calm.messages), timeout_us=1))
    with servers_of(workload.publish, {"": ()}) as servers:
        server = servers[""]

        def closed(loading: Loading, concurrency: int, seconds: float) -> ServeFigures:
            return measure_closed(server, loading, concurrency=concurrency, seconds=seconds)[0]

        capacities = [closed(calm, 16, calm_seconds) for _ in range(3)]
        expected = median(one.requests_per_second for one in capacities)
        normal = closed(calm, 1, calm_seconds / 2)
        refused = closed(unreachable, 16, calm_seconds)
        before = server.counts().resident_bytes or 0
        figures, result = measure_open(
            server, hurried, rate=expected * times, seconds=seconds, poisson=True
        )
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
