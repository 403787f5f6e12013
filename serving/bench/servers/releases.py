"""Effect of a release on the latency of a server in service.

The same requests are sent at the same times, without and with a version that appears in the
repository and is loaded meanwhile. Only the time of the load is compared. The version is a copy of
the served one.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import monotonic, sleep

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import InferenceServerClient

from serving.bench.load.cores import split_cpus
from serving.bench.load.result import LoadResult
from serving.bench.servers.serve import (
    Loading,
    measure_closed,
    measure_open,
    percentiles_ms,
)
from serving.bench.servers.server_under_test import ServerUnderTest, served
from serving.bench.workloads.workload import BenchModel
from sharded_infer.artifacts.manifest import MANIFEST_NAME, with_checksum
from sharded_infer.errors import ShardedInferError
from sharded_infer.progress import Progress

_MESSAGES = 64
_CONNECTIONS = 16
_CAPACITY_SECONDS = 3.0
_LEAD_SECONDS = 0.5  # of load before the version appears
_POLL_SECONDS = 0.05

# Makes a version ready, unmeasured; returns what publishes it, which returns its number.
Prepare = Callable[[], Callable[[], int]]


@dataclass(frozen=True, slots=True)
class ReleaseLoad:
    """Settings of a load under which versions are released.

    Attributes:
        pairs: samples of a request.
        share: of the capacity.
        seconds: of load in each half of a round, in which a version must load.
        options: further arguments of `sharded-infer serve`.
    """

    pairs: int
    share: float
    rounds: int
    seconds: float
    options: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class ReleaseRound:
    """One round: the same schedule without and with a release.

    Attributes:
        publish_seconds: from the call that publishes until it returned.
        load_seconds: from the call until the version was served.
        quiet_ms: percentiles of requests due within those seconds, without a release.
        release_ms: the same with a release.
        loading_quiet_ms: as `quiet_ms`, of requests due after the call returned.
        loading_ms: as `release_ms`, of the same: the server's own part.
        failed: requests of both runs that were not OK.
    """

    publish_seconds: float
    load_seconds: float
    quiet_ms: dict[str, float]
    release_ms: dict[str, float]
    loading_quiet_ms: dict[str, float]
    loading_ms: dict[str, float]
    failed: int

    @property
    def p99_ratio(self) -> float:
        """The p99 with the release over that without."""
        return self.release_ms["p99"] / self.quiet_ms["p99"]

    @property
    def loading_p99_ratio(self) -> float:
        """The same of requests due after the version was published."""
        return self.loading_ms["p99"] / self.loading_quiet_ms["p99"]


@dataclass(frozen=True, slots=True)
class Released:
    """Figures of all rounds.

    Attributes:
        capacity: requests answered a second in a closed loop of 16.
        rate: requests sent a second.
    """

    capacity: float
    rate: float
    rounds: tuple[ReleaseRound, ...]

    @property
    def p99_ratio(self) -> float:
        """The median ratio of the rounds."""
        return median(one.p99_ratio for one in self.rounds)

    @property
    def loading_p99_ratio(self) -> float:
        """The median ratio of the rounds."""
        return median(one.loading_p99_ratio for one in self.rounds)

    @property
    def load_seconds(self) -> float:
        """The median of the rounds."""
        return median(one.load_seconds for one in self.rounds)

    @property
    def failed(self) -> int:
        """Requests that were not OK."""
        return sum(one.failed for one in self.rounds)


@dataclass(frozen=True, slots=True)
class ReleaseMeasurement:
    """Figures of versions as large as the served one.

    Attributes:
        table_bytes: tables of each version.
    """

    released: Released
    table_bytes: int


def measure_releases(
    workload: BenchModel, load: ReleaseLoad, progress: Progress
) -> ReleaseMeasurement:
    """Publishes the model, serves it on one core, and releases it in each round under load.

    Raises:
        ShardedInferError: a version did not load in time.
    """
    with tempfile.TemporaryDirectory(prefix="sharded-infer-bench-") as folder:
        workload.publish(Path(folder))
        coming = _Coming(Path(folder) / workload.name)
        with releasing(workload, Path(folder), coming.prepare, load, progress) as (_, released):
            return ReleaseMeasurement(released, coming.table_bytes)


@contextmanager
def releasing(
    workload: BenchModel,
    repository: Path,
    prepare: Prepare,
    load: ReleaseLoad,
    progress: Progress,
) -> Iterator[tuple[ServerUnderTest, Released]]:
    """Serves a published model on one core, and releases a version in each round under load.

    Yields:
        The server, as long as it is wanted, and the figures.

    Raises:
        ShardedInferError: a version could not be published, or did not load in time.
    """
    server_cpus, load_cpus = split_cpus()
    messages = workload.messages(load.pairs, _MESSAGES)
    loading = Loading(messages, load.pairs, _CONNECTIONS, load_cpus)
    with served(repository, ["--poll-seconds=0.1", *load.options], server_cpus) as server:
        closed, _ = measure_closed(
            server, loading, concurrency=_CONNECTIONS, seconds=_CAPACITY_SECONDS
        )
        rate = load.share * closed.requests_per_second
        found = []
        for number in range(load.rounds):
            found.append(_round(server, loading, prepare, rate, load.seconds, number))
            progress("releases", number + 1, load.rounds)
        yield server, Released(closed.requests_per_second, rate, tuple(found))


class _Coming:
    """Versions that are prepared beside the repository and appear by a rename."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._number = 1
        manifest = json.loads((home / "1" / MANIFEST_NAME).read_bytes())
        files = manifest["files"]
        self.table_bytes = sum(files[name]["bytes"] for name in files if name.startswith("tables"))

    def prepare(self) -> Callable[[], int]:
        """Prepares the next version, complete but hidden; what publishes it."""
        self._number += 1
        staged = self._home / f".coming-{self._number}"
        # The files are the first version's own: what is compared is the loading.
        shutil.copytree(self._home / "1", staged, copy_function=os.link)
        manifest = json.loads((staged / MANIFEST_NAME).read_bytes())
        (staged / MANIFEST_NAME).unlink()
        del manifest["sha256"]
        text = json.dumps({**manifest, "version": self._number}).encode()
        (staged / MANIFEST_NAME).write_bytes(with_checksum(text))
        return partial(self._appear, staged, self._number)

    def _appear(self, staged: Path, number: int) -> int:
        staged.rename(self._home / str(number))
        return number


def _round(
    server: ServerUnderTest,
    loading: Loading,
    prepare: Prepare,
    rate: float,
    seconds: float,
    number: int,
) -> ReleaseRound:
    """The same schedule without and with a release.

    Args:
        number: of the round: they take turns which comes first.

    Raises:
        ShardedInferError: the version did not load in time.
    """
    channel = f"{server.target.host}:{server.target.port}"

    def load() -> LoadResult:
        return measure_open(
            server, loading, rate=rate, seconds=seconds, poisson=True, seed=number + 1
        )[1]

    with ThreadPoolExecutor(1) as threads, InferenceServerClient(channel) as client:
        quiet = load() if number % 2 == 0 else None
        publish = prepare()
        began = monotonic()
        running = threads.submit(load)
        sleep(_LEAD_SECONDS)
        called = monotonic()
        version = publish()
        published = monotonic()
        # The index is cheap to ask for; the metrics page would take the core for milliseconds.
        wait_until_served(client, version, goes_on=lambda: not running.done())
        ready = monotonic()
        release = running.result()
        quiet = quiet or load()

    def percentiles(result: LoadResult, first: float) -> dict[str, float]:
        # The load's process begins a moment after it was asked for: both ends are taken wider.
        return percentiles_ms(_due_within(result, first - began - _LEAD_SECONDS, ready - began))

    return ReleaseRound(
        publish_seconds=published - called,
        load_seconds=ready - called,
        quiet_ms=percentiles(quiet, called),
        release_ms=percentiles(release, called),
        loading_quiet_ms=percentiles(quiet, published),
        loading_ms=percentiles(release, published),
        failed=sum(int((result.codes != 0).sum()) for result in (quiet, release)),
    )


def wait_until_served(
    client: InferenceServerClient, version: int, *, goes_on: Callable[[], bool] = lambda: True
) -> None:
    """Waits until all answers may be of a version.

    Args:
        goes_on: whether to wait longer.

    Raises:
        ShardedInferError: it did not load, or not in time.
    """
    while (state := _state_of(client, version)) != "READY":
        if state == "UNAVAILABLE" or not goes_on():
            raise ShardedInferError(f"version {version} did not load in time")
        sleep(_POLL_SECONDS)


def _state_of(client: InferenceServerClient, version: int) -> str:
    """The state of a version in the server; empty if it has not seen it."""
    entries = client.get_model_repository_index().models
    return next((str(one.state) for one in entries if one.version == str(version)), "")


def _due_within(result: LoadResult, start: float, end: float) -> NDArray[np.float64]:
    due = (result.scheduled >= start) & (result.scheduled <= end) & (result.codes == 0)
    latencies: NDArray[np.float64] = result.latency[due]
    return latencies
