"""A round of a load: the same requests without a release, and with one.

If publishing takes processor time, a third run has the same work beside it, for a repository that
nobody serves: its cost is the machine's, and not the release's.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import monotonic, sleep
from typing import Any

from tritonclient.grpc import InferenceServerClient

from benchmarks.releases.same_requests import Pooled, Run, SameRequests, StolenTime, pooled
from serving.bench.load.process import split_cpus
from serving.bench.servers.serve import Loading, measure_closed, measure_open, percentiles_ms
from serving.bench.servers.server_under_test import ServerUnderTest, served
from serving.bench.workloads.workload import Workload
from serving.commands.bench.report import Columns
from sharded_infer.errors import ShardedInferError
from sharded_infer.progress import Progress

ROUND_COLUMNS: Columns = [
    ("load s", ".2f", "load_seconds"),
    ("p50", ".2f", "quiet_ms/p50"),
    ("p99", ".2f", "quiet_ms/p99"),
    ("p50 releasing", ".2f", "release_ms/p50"),
    ("p99 releasing", ".2f", "release_ms/p99"),
    ("ratio", ".2f", "p99_ratio"),
    ("failed", "d", "failed"),
]
# Prepares a version, unmeasured. Returns a function that publishes it, for its number, and one that
# does the same for a repository that nobody serves; None if publishing takes no time.
Prepare = Callable[[], tuple[Callable[[], int], Callable[[], object] | None]]
_BUSY = 16
_CAPACITY_SECONDS = 3.0
_LEAD_SECONDS = 0.5  # of load before the version appears
# The shortest time that is compared.
_LEAST_SECONDS = 0.25
_POLL_SECONDS = 0.05
# What runs beside the requests.
QUIET, ELSEWHERE, RELEASE = "quiet", "elsewhere", "release"


@dataclass(frozen=True, slots=True)
class ReleaseLoad:
    """Settings of a load with releases; a version must load within the `seconds` of a run."""

    pairs: int
    share: float
    rounds: int
    seconds: float
    options: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Released:
    """Requests a second, in a closed loop of 16 and sent, and pooled until the version was served.

    `loading` are only requests due after the call that publishes had returned.
    """

    capacity: float
    rate: float
    rounds: tuple[dict[str, Any], ...]
    requests: Pooled
    loading: Pooled

    @property
    def load_seconds(self) -> float:
        return float(median(one["load_seconds"] for one in self.rounds))

    def note(self) -> str:
        found = self.requests
        return (
            f"p99 meanwhile: {ratio_text(found.p99_ratio(RELEASE, QUIET))} times that without, of "
            f"{found.requests} requests in {found.windows - found.left_out} of {found.windows} "
            "windows"
        )

    def fields(self) -> dict[str, Any]:
        """Figures that `--json` writes of both kinds of releases."""
        return {
            "p99_ratio": self.requests.p99_ratio(RELEASE, QUIET),
            "pooled": asdict(self.requests),
            "failed_requests": sum(one["failed"] for one in self.rounds),
            "rounds": self.rounds,
        }


def ratio_text(ratio: float | None) -> str:
    """A ratio of p99s, None without a window that counts."""
    return "unknown" if ratio is None else f"{ratio:.2f}"


@contextmanager
def releasing(
    workload: Workload,
    repository: Path,
    prepare: Prepare,
    load: ReleaseLoad,
    progress: Progress,
) -> Iterator[tuple[ServerUnderTest, Released]]:
    """Serve a published model, and release a version in each round; yields server and figures."""
    loading = Loading.of(workload, load.pairs)
    with served(repository, ["--poll-seconds=0.1", *load.options]) as server:
        closed, _ = measure_closed(server, loading, concurrency=_BUSY, seconds=_CAPACITY_SECONDS)
        rate = load.share * closed.requests_per_second
        # Not measured: the kernel still arranges the memory of a server that has just started.
        measure_open(server, loading, rate=rate, seconds=load.seconds)
        found = []
        for number in range(load.rounds):
            found.append(_round(server, loading, prepare, rate, load.seconds, number))
            progress("releases", number + 1, load.rounds)
        rounds, requests, after = zip(*found, strict=True)
        yield (
            server,
            Released(closed.requests_per_second, rate, rounds, pooled(requests), pooled(after)),
        )


def _round(
    server: ServerUnderTest,
    loading: Loading,
    prepare: Prepare,
    rate: float,
    seconds: float,
    number: int,
) -> tuple[dict[str, Any], SameRequests, SameRequests]:
    """Run the same schedule without and with a release, the order depending on the round's number.

    Returns the figures, the requests due until the version was served, and of these the requests
    due after it was published.
    """
    called = published = ready = 0.0
    cpus = set().union(*split_cpus())

    def load() -> Run:
        with StolenTime(cpus) as stolen:
            _, result = measure_open(server, loading, rate=rate, seconds=seconds, seed=number + 1)
        return Run(result, stolen)

    def beside(work: Callable[["Future[Run]"], object]) -> Run:
        with ThreadPoolExecutor(1) as threads:
            running = threads.submit(load)
            sleep(_LEAD_SECONDS)
            work(running)
            return running.result()

    def release(running: "Future[Run]") -> None:
        nonlocal called, published, ready
        called = monotonic()
        version = publish()
        published = monotonic()
        # The index is cheap to query; the metrics page would take the core for milliseconds.
        wait_until_served(client, version, goes_on=lambda: not running.done())
        ready = monotonic()

    publish, elsewhere = prepare()
    turns: list[tuple[str, Callable[[], Run]]] = [
        (QUIET, load),
        (RELEASE, partial(beside, release)),
    ]
    if elsewhere is not None:
        turns.insert(1, (ELSEWHERE, partial(beside, lambda _: elsewhere())))
    first = number % len(turns)
    with InferenceServerClient(f"{server.target.host}:{server.target.port}") as client:
        runs = {name: run() for name, run in (*turns[first:], *turns[:first])}
    began = runs[RELEASE].result.began
    # A small version is served before a request is due.
    end = max(ready, called + _LEAST_SECONDS)
    whole = SameRequests(runs, max(0.0, called - began), min(end - began, seconds))
    quiet_ms, release_ms = (
        percentiles_ms(runs[name].latencies(whole.first, whole.last)) for name in (QUIET, RELEASE)
    )
    found = {
        "publish_seconds": published - called,
        # From the call that publishes until the version was served.
        "load_seconds": ready - called,
        "quiet_ms": quiet_ms,
        "release_ms": release_ms,
        # Of both cores, by the hypervisor, in those seconds of each run.
        "stolen_seconds": {n: r.stolen_within(whole.first, whole.last) for n, r in runs.items()},
        "failed": sum(int((run.result.codes != 0).sum()) for run in runs.values()),
        "p99_ratio": release_ms["p99"] / quiet_ms["p99"],
    }
    return found, whole, SameRequests(runs, max(0.0, published - began), whole.last)


def wait_until_served(
    client: InferenceServerClient, version: int, *, goes_on: Callable[[], bool] = lambda: True
) -> None:
    """Wait until all answers may be of a version."""
    while (state := _state_of(client, version)) != "READY":
        if state == "UNAVAILABLE" or not goes_on():
            raise ShardedInferError(f"version {version} did not load in time")
        sleep(_POLL_SECONDS)


def _state_of(client: InferenceServerClient, version: int) -> str:
    entries = client.get_model_repository_index().models
    return next((str(one.state) for one in entries if one.version == str(version)), "")
