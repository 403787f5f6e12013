"""Effect of a release on the latency of a server in service."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.releases.release_round import QUIET, RELEASE, Coming, measure_round
from benchmarks.releases.same_requests import Pooled, pooled
from serving.bench.servers.serve import Loading, measure_closed, measure_open
from serving.bench.servers.server_under_test import ServerUnderTest, served
from serving.bench.workloads.workload import BenchModel
from serving.commands.bench.report import Columns, Report
from sharded_infer.artifacts.manifest import MANIFEST_NAME, with_checksum
from sharded_infer.byte_sizes import size_text
from sharded_infer.progress import Progress

ROUND_COLUMNS: Columns = [
    *(
        (name, ".2f")
        for name in ("load s", "p50", "p99", "p50 releasing", "p99 releasing", "ratio")
    ),
    ("failed", "d"),
]
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
    rounds: tuple[dict[str, Any], ...]
    requests: Pooled
    loading: Pooled

    @property
    def load_seconds(self) -> float:
        """Median of the rounds."""
        return float(median(one["load_seconds"] for one in self.rounds))

    def rows(self) -> list[tuple[float, ...]]:
        """Figures of each round, for `ROUND_COLUMNS`."""
        return [
            (
                one["load_seconds"], one["quiet_ms"]["p50"], one["quiet_ms"]["p99"],
                one["release_ms"]["p50"], one["release_ms"]["p99"], one["p99_ratio"], one["failed"],
            )
            for one in self.rounds
        ]  # fmt: skip

    def note(self) -> str:
        """The ratio of the pooled p99s, and its requests."""
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


def measure_releases(workload: BenchModel, load: ReleaseLoad, progress: Progress) -> Report:
    """Publish the model, serve it on one core, and release it in each round under load."""
    with tempfile.TemporaryDirectory(prefix="sharded-infer-bench-") as folder:
        workload.publish(Path(folder))
        coming = _Coming(Path(folder) / workload.name)
        with releasing(workload, Path(folder), coming, load, progress) as (_, released):
            return Report(
                ROUND_COLUMNS,
                released.rows(),
                [
                    f"\n{released.note()}\n",
                    f"{load.pairs} pairs, {released.rate:.0f} of {released.capacity:.0f} "
                    f"requests/s, {size_text(coming.table_bytes)} of tables, one core",
                ],
                {
                    "pairs": load.pairs,
                    "capacity_requests_per_second": released.capacity,
                    "requests_per_second": released.rate,
                    "table_bytes": coming.table_bytes,
                    **released.fields(),
                },
            )


@contextmanager
def releasing(
    workload: BenchModel,
    repository: Path,
    coming: Coming,
    load: ReleaseLoad,
    progress: Progress,
) -> Iterator[tuple[ServerUnderTest, Released]]:
    """Serve a published model, and release a version in each round; yields server and figures."""
    loading = Loading.of(workload, load.pairs)
    with served(repository, ["--poll-seconds=0.1", *load.options]) as server:
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
        files = json.loads((home / "1" / MANIFEST_NAME).read_bytes())["files"]
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
