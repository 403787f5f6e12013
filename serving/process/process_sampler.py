"""Samples this process every second: processor time, memory, queues, most requested rows.

One thread of the lowest priority does all of this, never a thread that handles requests.
"""

import itertools
import logging
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic, process_time

from serving.host.background import lower_priority
from serving.metrics.families.family import Detail
from serving.metrics.families.server_families import (
    WORKER_CPU_SECONDS,
    WORKER_HUGE_PAGE_BYTES,
    WORKER_RESIDENT_BYTES,
)
from serving.metrics.server_metrics import ServerMetrics
from serving.versions.loaded_version import LoadedVersion

_log = logging.getLogger("sharded_infer")
_SECONDS = 1.0
_HOT_ROWS_SECONDS = 5.0
_HUGE_PAGES_SECONDS = 10.0
# Reading huge pages walks all mappings. It takes at most this share of the time.
_HUGE_PAGES_SHARE = 0.001
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ProcessSampler:
    """Updates the metrics of a process, apart from those of its requests."""

    def __init__(
        self,
        loaded_versions: Callable[[], Sequence[LoadedVersion]],
        metrics: ServerMetrics,
        root: Path = Path("/proc/self"),
    ) -> None:
        """Start no thread yet; `root` is the process's folder in procfs."""
        self._loaded_versions = loaded_versions
        self._metrics = metrics
        self._root = root
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._cpu_seconds = 0.0
        self._hot_rows_due = 0.0
        self._huge_pages_due = 0.0

    def start(self) -> None:
        """Start sampling, if metrics are kept in full detail."""
        if self._metrics.detail is Detail.FULL:
            self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop sampling."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def look(self, now: float) -> None:
        """Take one sample; `now` is of the monotonic clock, as requests' arrivals are."""
        cpu, before = process_time(), self._cpu_seconds
        self._metrics.add(WORKER_CPU_SECONDS, cpu - before)
        self._cpu_seconds = cpu
        resident_pages = int((self._root / "statm").read_text().split()[1])
        self._metrics.set(WORKER_RESIDENT_BYTES, resident_pages * _PAGE_BYTES)
        loaded_versions = self._loaded_versions()
        for loaded_version in loaded_versions:
            arrived = loaded_version.queue.oldest_arrival()
            loaded_version.metrics.oldest(max(0.0, now - arrived))
            _say_users(loaded_version)
            _say_tiers(loaded_version)
        if now >= self._hot_rows_due:
            self._hot_rows_due = now + _HOT_ROWS_SECONDS
            for loaded_version in loaded_versions:
                _say_hot_rows(loaded_version)
        if now >= self._huge_pages_due:
            huge = _huge_page_bytes(self._root / "smaps_rollup")
            self._metrics.set(WORKER_HUGE_PAGE_BYTES, huge)
            took = monotonic() - now
            self._huge_pages_due = now + max(_HUGE_PAGES_SECONDS, took / _HUGE_PAGES_SHARE)

    def _run(self) -> None:
        lower_priority()
        troubled = False
        while not self._stop.is_set():
            try:
                self.look(monotonic())
            except Exception as error:
                # Logged once: the next sample will most likely fail in the same way.
                if not troubled:
                    # Attackers may take all file descriptors for a while.
                    trace = None if isinstance(error, OSError) else error
                    _log.error("the process is not sampled: %s", error, exc_info=trace)
                troubled = True
            self._stop.wait(_SECONDS)


def first_rows_of(rows_by_table: Sequence[tuple[str, int]]) -> list[int]:
    """First rows of features' tables in a numbering of all tables' rows, from names and numbers."""
    tables = dict(rows_by_table)
    ends = itertools.accumulate(tables.values())
    first = {name: end - tables[name] for name, end in zip(tables, ends, strict=True)}
    return [first[name] for name, _ in rows_by_table]


def _say_hot_rows(loaded_version: LoadedVersion) -> None:
    lookups = loaded_version.metrics.lookups
    if lookups is not None:
        features = loaded_version.model.spec.input_features
        first_rows = first_rows_of([(f.table.name, f.table.rows) for f in features])
        lookups.hot_rows(lookups.rows.hot_share(first_rows))


def _say_users(loaded_version: LoadedVersion) -> None:
    users, lookups = loaded_version.model.users, loaded_version.metrics.lookups
    if users is not None and lookups is not None:
        lookups.cached_users(users.held_bytes, users.newly_evicted())


def _say_tiers(loaded_version: LoadedVersion) -> None:
    rows, lookups = loaded_version.model.row_memory, loaded_version.metrics.lookups
    if rows is not None and lookups is not None:
        lookups.tiers.count(rows.tiers)


def _huge_page_bytes(path: Path) -> int:
    """Bytes in huge pages, both anonymous and file-backed."""
    found = 0
    for line in path.read_text().splitlines():
        if line.startswith(("AnonHugePages:", "ShmemPmdMapped:", "FilePmdMapped:")):
            found += int(line.split()[1]) * 1024
    return found
