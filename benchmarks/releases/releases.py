"""Effect of a release on the latency of a server in service.

The same requests are sent at the same times, without and with a copy of the served version that
appears in the repository and is loaded meanwhile. Only the time of the load is compared.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.releases.release_round import (
    QUIET,
    RELEASE,
    Coming,
    ReleaseRound,
    measure_round,
)
from benchmarks.releases.same_requests import Pooled, pooled
from serving.bench.load.cores import split_cpus
from serving.bench.servers.serve import Loading, measure_closed, measure_open
from serving.bench.servers.server_under_test import ServerUnderTest, served
from serving.bench.workloads.workload import BenchModel
from sharded_infer.artifacts.manifest import MANIFEST_NAME, with_checksum
from sharded_infer.progress import Progress

_BUSY = 16
_CAPACITY_SECONDS = 3.0


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
    rounds: tuple[ReleaseRound, ...]
    requests: Pooled
    loading: Pooled

    @property
    def p99_ratio(self) -> float | None:
        """Ratio with releases to without."""
        return self.requests.p99_ratio(RELEASE, QUIET)

    @property
    def load_seconds(self) -> float:
        """Median of the rounds."""
        return median(one.load_seconds for one in self.rounds)

    @property
    def failed(self) -> int:
        """Requests that were not OK."""
        return sum(one.failed for one in self.rounds)


@dataclass(frozen=True, slots=True)
class ReleaseMeasurement:
    """Figures of versions as large as the served one."""

    released: Released
    table_bytes: int


def measure_releases(
    workload: BenchModel, load: ReleaseLoad, progress: Progress
) -> ReleaseMeasurement:
    """Publish the model, serve it on one core, and release it in each round under load."""
    with tempfile.TemporaryDirectory(prefix="sharded-infer-bench-") as folder:
        workload.publish(Path(folder))
        coming = _Coming(Path(folder) / workload.name)
        with releasing(workload, Path(folder), coming, load, progress) as (_, released):
            return ReleaseMeasurement(released, coming.table_bytes)


@contextmanager
def releasing(
    workload: BenchModel,
    repository: Path,
    coming: Coming,
    load: ReleaseLoad,
    progress: Progress,
) -> Iterator[tuple[ServerUnderTest, Released]]:
    """Serve a published model, and release a version in each round; yields server and figures."""
    server_cpus, load_cpus = split_cpus()
    loading = Loading.of(workload, load.pairs, load_cpus)
    with served(repository, ["--poll-seconds=0.1", *load.options], server_cpus) as server:
        closed, _ = measure_closed(server, loading, concurrency=_BUSY, seconds=_CAPACITY_SECONDS)
        rate = load.share * closed.requests_per_second
        # Not measured: the kernel still arranges the memory of a server that has just started.
        measure_open(server, loading, rate=rate, seconds=load.seconds, poisson=True)
        found = []
        for number in range(load.rounds):
            found.append(measure_round(server, loading, coming, rate, load.seconds, number))
            progress("releases", number + 1, load.rounds)
        rounds, requests, after = zip(*found, strict=True)
        yield (
            server,
            Released(closed.requests_per_second, rate, rounds, pooled(requests), pooled(after)),
        )


class _Coming:
    """Versions that are prepared beside the repository and appear by a rename."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._number = 1
        manifest = json.loads((home / "1" / MANIFEST_NAME).read_bytes())
        files = manifest["files"]
        self.table_bytes = sum(files[name]["bytes"] for name in files if name.startswith("tables"))

    def prepare(self) -> Callable[[], int]:
        self._number += 1
        staged = self._home / f".coming-{self._number}"
        # The files are the first version's own: the loading is compared.
        shutil.copytree(self._home / "1", staged, copy_function=os.link)
        manifest = json.loads((staged / MANIFEST_NAME).read_bytes())
        (staged / MANIFEST_NAME).unlink()
        del manifest["sha256"]
        text = json.dumps({**manifest, "version": self._number}).encode()
        (staged / MANIFEST_NAME).write_bytes(with_checksum(text))
        return partial(self._appear, staged, self._number)

    def prepare_elsewhere(self) -> None:
        """Nothing: a rename takes no time."""

    def _appear(self, staged: Path, number: int) -> int:
        staged.rename(self._home / str(number))
        return number
