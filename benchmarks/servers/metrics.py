"""Cost of metrics: throughput with all metrics and with none, and the counting calls alone.

Two servers of one model share a core, one of them idle at any time. Each round loads them in turn,
in changing order, so that other work of the machine affects both alike.
"""

import tempfile
import time
import timeit
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from serving.bench.load.cores import split_cpus
from serving.bench.servers.serve import Loading, measure_answered
from serving.bench.servers.server_under_test import ServerUnderTest, served
from serving.bench.workloads.workload import BenchModel
from serving.metrics.families.family import Detail
from serving.metrics.server_metrics import ServerMetrics
from serving.metrics.version_info import VersionInfo
from serving.metrics.version_metrics import Answered
from sharded_infer.artifacts.golden import generate_samples
from sharded_infer.lookups.lookup_work import LookupWork
from sharded_infer.progress import Progress

_MESSAGES = 64
_REPEATS, _CALLS = 7, 2000


@dataclass(frozen=True, slots=True)
class MetricsRound:
    """The same load on both servers.

    Attributes:
        full: requests a second with all metrics.
        off: requests a second with none.
        full_cpu_ms: processor milliseconds of a request with all metrics.
        off_cpu_ms: the same with no metrics.
    """

    pairs: int
    full: float
    off: float
    full_cpu_ms: float
    off_cpu_ms: float

    @property
    def cost(self) -> float:
        """The share of the throughput that counting takes."""
        return 1.0 - self.full / self.off

    @property
    def cpu_cost(self) -> float:
        """The share of a request's processor time that counting takes."""
        return 1.0 - self.off_cpu_ms / self.full_cpu_ms if self.full_cpu_ms else 0.0


@dataclass(frozen=True, slots=True)
class MetricsCost:
    """Summary of the rounds with requests of one size.

    Attributes:
        full: requests a second with all metrics, the rounds' median.
        off: requests a second with none.
        full_cpu_ms: processor milliseconds of a request with all metrics.
        off_cpu_ms: the same with no metrics.
        percent: share of the throughput that counting takes, the median of the rounds.
        cpu_percent: share of a request's processor time, the median of the rounds.
        counting_us: microseconds of a request in the counting calls, called in a loop.
    """

    pairs: int
    full: float
    off: float
    full_cpu_ms: float
    off_cpu_ms: float
    percent: float
    cpu_percent: float
    counting_us: float


def measure_metrics(
    workload: BenchModel,
    *,
    sizes: Sequence[int],
    rounds: int,
    seconds: float,
    concurrency: int,
    progress: Progress,
) -> tuple[list[MetricsCost], list[MetricsRound]]:
    """Publishes the model, and loads a server with metrics and one without.

    Args:
        sizes: pairs of a request, measured in turn.
        rounds: rounds of each size.
        seconds: load on each server in a round.

    Returns:
        The figures by size, and the rounds in order.

    Raises:
        ShardedInferError: a server did not answer.
    """
    server_cpus, load_cpus = split_cpus()
    found: list[MetricsRound] = []
    with tempfile.TemporaryDirectory(prefix="sharded-infer-bench-") as folder, ExitStack() as stack:
        workload.publish(Path(folder))
        full, off = (
            stack.enter_context(
                served(Path(folder), [f"--metrics={detail}", "--poll-seconds=0"], server_cpus)
            )
            for detail in ("full", "off")
        )
        for number in range(rounds):
            for pairs in sizes:
                messages = workload.messages(pairs, _MESSAGES)
                loading = Loading(messages, pairs, concurrency, load_cpus)
                order = (full, off) if number % 2 == 0 else (off, full)
                rates = {
                    server.metrics_url: _rate(server, loading, concurrency, seconds)
                    for server in order
                }
                with_all, with_none = rates[full.metrics_url], rates[off.metrics_url]
                found.append(
                    MetricsRound(pairs, with_all[0], with_none[0], with_all[1], with_none[1])
                )
                progress("rounds", len(found), rounds * len(sizes))
    return [_summed_up(workload, pairs, found) for pairs in sizes], found


def counting_seconds(workload: BenchModel, pairs: int, detail: Detail = Detail.FULL) -> float:
    """Seconds that the counting calls of a request take, if it is a batch by itself."""
    metrics = ServerMetrics(detail=detail)
    version = metrics.version("bench", 1)
    spec = workload.spec()
    features = tuple(feature.name for feature in spec.features)
    version.describe(VersionInfo(0.033, (1,), ("score",), features))
    model_input = generate_samples(spec, pairs)
    rows = sum(group.values.size for group in model_input.groups)
    scores = (np.full(pairs, 0.5, np.float32),)
    work = LookupWork([(0, rows, 68 * rows, 4e-4)], 0)
    answered: Answered = (pairs, 1e-4, 0.0, 4e-4, 2e-3, 5e-5, 3e-3, 0)

    def count() -> None:
        metrics.in_flight(1)
        version.answered_many([answered])
        if version.lookups is not None:
            version.lookups.looked_up(work, model_input, scores)
        version.ran_batch(requests=1, samples=pairs, seconds=2.5e-3, predicted=2.4e-3)
        version.queue(requests=0, samples=0)
        metrics.in_flight(-1)

    # Processor time: what others do on this core is not counting.
    timer = time.thread_time
    return min(timeit.repeat(count, timer=timer, number=_CALLS, repeat=_REPEATS)) / _CALLS


def _rate(
    server: ServerUnderTest, loading: Loading, concurrency: int, seconds: float
) -> tuple[float, float]:
    figures = measure_answered(
        "the server", server, loading, concurrency=concurrency, seconds=seconds
    )
    return figures.requests_per_second, figures.cpu_ms_per_request or 0.0


def _summed_up(workload: BenchModel, pairs: int, rounds: Sequence[MetricsRound]) -> MetricsCost:
    own = [one for one in rounds if one.pairs == pairs]
    return MetricsCost(
        pairs=pairs,
        full=median(one.full for one in own),
        off=median(one.off for one in own),
        full_cpu_ms=median(one.full_cpu_ms for one in own),
        off_cpu_ms=median(one.off_cpu_ms for one in own),
        percent=100.0 * median(one.cost for one in own),
        cpu_percent=100.0 * median(one.cpu_cost for one in own),
        counting_us=1e6 * counting_seconds(workload, pairs),
    )
