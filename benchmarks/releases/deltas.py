"""Effect and speed of a delta version, beside a whole release of the same table.

In each round the command publishes changed rows, on the load's core, while requests come. The same
command for a copy of the repository, which nobody serves, shows the command's own cost.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

import numpy as np
import torch
from tritonclient.grpc import InferenceServerClient

from benchmarks.releases.release_round import (
    ELSEWHERE,
    QUIET,
    RELEASE,
    ROUND_COLUMNS,
    ReleaseLoad,
    ratio_text,
    releasing,
    wait_until_served,
)
from kernels.bags import Bags
from kernels.fused_tables import FusedTables
from kernels.pooled_lookup import PooledLookup
from kernels.row_format import RowFormat
from kernels.row_overlay import OverlayLayer, RowOverlay
from serving.bench.load.process import split_cpus
from serving.bench.parts.machine_limit import private_memory
from serving.bench.servers.server_under_test import ServerUnderTest
from serving.bench.turns import median_rates
from serving.bench.workloads.workload import Workload, equal_tables
from serving.commands.bench.report import Report
from serving.host.background import LOWEST
from sharded_infer.byte_sizes import size_text
from sharded_infer.errors import ShardedInferError
from sharded_infer.importing.changes.changed_rows import ChangedRows
from sharded_infer.importing.changes.written_files import write_changes
from sharded_infer.progress import Progress
from sharded_infer.repositories.repository import Repository

_DIM, _IDS = 128, 20
_TABLE = "C0"
_ROW_BYTES = RowFormat.INT8.row_bytes(_DIM)
_LOOKUP_ROUNDS, _LOOKUP_CALLS = 20, 200
_LINKED_BYTES = 1 << 20


def measure_deltas(
    gigabytes: float, changed: float, load: ReleaseLoad, progress: Progress
) -> Report:
    """Publish a table whole, then change a share of its rows in each round under load."""
    rows = int(gigabytes * 1e9 / _ROW_BYTES)
    workload = equal_tables("deltas", 1, rows, _DIM, _IDS, layers=(256,))
    with tempfile.TemporaryDirectory(prefix="sharded-infer-bench-") as folder:
        repository = Path(folder) / "repository"
        progress("publishing the table", 0, 1)
        workload.publish(repository)
        progress("publishing the table", 1, 1)
        elsewhere = Path(folder) / "elsewhere"
        shutil.copytree(repository, elsewhere, copy_function=_link_large)
        # Written files are on the disk before anything is measured.
        os.sync()
        coming = _ComingRows(repository, elsewhere, Path(folder), rows, max(1, int(rows * changed)))
        with releasing(workload, repository, coming.prepare, load, progress) as (server, released):
            full_seconds, full_bytes = _full_release(server, workload, repository)
    lookup_ratio = _lookup_ratio(rows, coming.changed, load.pairs, progress)
    written = median(coming.written_bytes)
    over_changed = written / (coming.changed * _ROW_BYTES)
    beside = released.requests.p99_ratio(ELSEWHERE, QUIET)
    loading = released.loading.p99_ratio(RELEASE, QUIET)
    return Report(
        ROUND_COLUMNS,
        released.rounds,
        [
            f"\n{coming.changed:,} of {rows:,} rows changed, {size_text(rows * _ROW_BYTES)} of "
            f"table, {released.rate:.0f} of {released.capacity:.0f} requests/s, one core",
            f"from publish to served: {released.load_seconds:.2f} s; whole: {full_seconds:.1f} s",
            f"written: {size_text(round(written))}, {over_changed:.2f} times the changed rows; "
            f"whole: {size_text(full_bytes)}",
            released.note(),
            f"beside the command for a repository that nobody serves: {ratio_text(beside)}; after "
            f"it was published: {ratio_text(loading)}",
            f"lookups with changed rows: {lookup_ratio:.3f} times the time of those without",
        ],
        {
            "publish_to_served_seconds": released.load_seconds,
            "bytes_over_changed": over_changed,
            "p99_ratio_elsewhere": beside,
            "loading_p99_ratio": loading,
            "pooled_loading": asdict(released.loading),
            "rate": released.rate,
            "capacity": released.capacity,
            "rows": rows,
            "changed_rows": coming.changed,
            "table_bytes": rows * _ROW_BYTES,
            "written_bytes": coming.written_bytes,
            "full_seconds": full_seconds,
            "full_bytes": full_bytes,
            "lookup_ratio": lookup_ratio,
            **released.fields(),
        },
    )


@dataclass(slots=True)
class _ComingRows:
    """Files of changed rows for the command; `elsewhere` is a copy that nobody serves."""

    repository: Path
    elsewhere: Path
    folder: Path
    rows: int
    changed: int
    written: int = 0
    written_bytes: list[int] = field(default_factory=list)

    def prepare(self) -> tuple[Callable[[], int], Callable[[], object]]:
        path = self._write()

        def publish() -> int:
            said = self._publish(path, self.repository)
            self.written_bytes.append(said["written_bytes"])
            return int(said["version"])

        return publish, partial(self._publish, self._write(), self.elsewhere)

    def _write(self) -> Path:
        self.written += 1
        generator = np.random.default_rng(self.written)
        ids = generator.choice(self.rows, self.changed, replace=False)
        values = torch.from_numpy(generator.standard_normal((self.changed, _DIM), np.float32))
        path = self.folder / f"changed-{self.written}.safetensors"
        write_changes({_TABLE: ChangedRows(ids, values / _DIM)}, path)
        return path

    def _publish(self, path: Path, repository: Path) -> Any:
        # The priority that the command takes beside a server.
        words = ("publish", "--repository", repository, "--changed", path, "--nice", LOWEST)
        with subprocess.Popen(  # noqa: S603 - our own command
            [sys.executable, "-m", "serving.cli", *map(str, words), "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            # The server keeps its core. The load stands for clients on other machines: from its
            # start, the command has what they leave of theirs.
            os.sched_setaffinity(process.pid, split_cpus()[1])
            os.sched_setscheduler(process.pid, os.SCHED_IDLE, os.sched_param(0))
            out, errors = process.communicate()
        if process.returncode:
            raise ShardedInferError(f"publish --changed failed: {errors.strip()}")
        return json.loads(out)


def _link_large(source: str, target: str) -> None:
    """Link the table's file; copy small ones, such as locks, which belong to one repository."""
    copy = os.link if os.path.getsize(source) > _LINKED_BYTES else shutil.copy2
    copy(source, target)


def _full_release(server: ServerUnderTest, workload: Workload, location: Path) -> tuple[float, int]:
    """Publish the whole table, without a load: seconds until it is served, and bytes."""
    began, repository = monotonic(), Repository(location)
    workload.publish(location)
    version = repository.versions(workload.name)[-1]
    with InferenceServerClient(f"{server.target.host}:{server.target.port}") as client:
        wait_until_served(client, version)
    seconds = monotonic() - began
    files = repository.manifest(workload.name, version).files
    return seconds, sum(record.bytes for record in files.values())


def _lookup_ratio(rows: int, changed: int, pairs: int, progress: Progress) -> float:
    """Time of lookups with changed rows over that without, on one thread."""
    torch.set_num_threads(1)
    generator = np.random.default_rng(0)
    memory = private_memory(rows * _ROW_BYTES, huge=True)
    ids = np.sort(generator.choice(rows, changed, replace=False)).astype(np.int64)
    stored = private_memory(changed * _ROW_BYTES, huge=True).view(changed, _ROW_BYTES)
    overlay = RowOverlay.of(rows, rows, [OverlayLayer(ids, stored)])

    def prepared(overlays: tuple[RowOverlay, ...]) -> tuple[Callable[[], object], int]:
        tables = FusedTables(
            memory, RowFormat.INT8, (0,), (rows,), (_DIM,), (False,), overlays=overlays
        )
        lookup = PooledLookup(tables)
        lengths = torch.full((1, pairs), _IDS)
        # Rows that are in no cache.
        values = torch.from_numpy(generator.integers(0, rows, (_LOOKUP_CALLS, pairs * _IDS)))
        batches = [Bags(one, lengths) for one in values]
        return lambda: [lookup(bags, ids_checked=True) for bags in batches], _LOOKUP_CALLS

    rates = median_rates(
        {"plain": partial(prepared, ()), "overlaid": partial(prepared, (overlay,))},
        generator,
        seconds=0.0,
        least_rounds=_LOOKUP_ROUNDS,
        progress=progress,
    )
    return rates["plain"] / rates["overlaid"]
