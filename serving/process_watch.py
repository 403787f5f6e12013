"""Looks at this process every second, beside the requests: processor time, memory, queues, rows.

One thread of the lowest priority. Nothing of this is ever done on a request's thread.
"""

import itertools
import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from time import monotonic, process_time

from serving.background import lower_priority
from serving.metric_family import Detail
from serving.metrics import Metrics
from serving.model_store import ModelStore
from serving.snapshot import Snapshot

_log = logging.getLogger("sharded_infer")
_SECONDS = 1.0
_HOT_ROWS_SECONDS = 5.0
_HUGE_PAGES_SECONDS = 10.0
# Reading them walks all mappings: at most this share of the time, however large the tables are.
_HUGE_PAGES_SHARE = 0.001
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ProcessWatch:
    """What one worker says of itself, not of its requests."""

    def __init__(
        self, store: ModelStore, metrics: Metrics, root: Path = Path("/proc/self")
    ) -> None:
        """Begins with nothing said.

        Args:
            store: this process's versions.
            metrics: the server's.
            root: where this process's files lie.
        """
        self._store = store
        self._metrics = metrics
        self._root = root
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._cpu_seconds = 0.0
        self._hot_rows_due = 0.0
        self._huge_pages_due = 0.0

    def start(self) -> None:
        """Looks from now on, where everything is counted."""
        if self._metrics.detail is Detail.FULL:
            self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Looks no more."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def look(self, now: float) -> None:
        """Looks once.

        Args:
            now: seconds of the monotonic clock, which tickets' arrivals are of.
        """
        cpu, before = process_time(), self._cpu_seconds
        self._metrics.worked(cpu - before)
        self._cpu_seconds = cpu
        resident_pages = int((self._root / "statm").read_text().split()[1])
        self._metrics.resident(resident_pages * _PAGE_BYTES)
        snapshots = self._store.snapshots()
        for snapshot in snapshots:
            arrived = snapshot.lane.oldest_arrival()
            snapshot.metrics.oldest(max(0.0, now - arrived))
        if now >= self._hot_rows_due:
            self._hot_rows_due = now + _HOT_ROWS_SECONDS
            for snapshot in snapshots:
                _say_hot_rows(snapshot)
        if now >= self._huge_pages_due:
            self._metrics.huge_pages(_huge_page_bytes(self._root / "smaps_rollup"))
            took = monotonic() - now
            self._huge_pages_due = now + max(_HUGE_PAGES_SECONDS, took / _HUGE_PAGES_SHARE)

    def _run(self) -> None:
        lower_priority()
        troubled = False
        while not self._stop.is_set():
            try:
                self.look(monotonic())
            except Exception:
                # Said once: a second later it will not be otherwise.
                if not troubled:
                    _log.exception("internal error in watching the process")
                troubled = True
            self._stop.wait(_SECONDS)


def first_rows_of(rows_by_table: Sequence[tuple[str, int]]) -> list[int]:
    """For each feature the number that its table's first row has among all tables' rows.

    Args:
        rows_by_table: for each feature its table's name and rows.
    """
    tables = dict(rows_by_table)
    ends = itertools.accumulate(tables.values())
    first = {name: end - tables[name] for name, end in zip(tables, ends, strict=True)}
    return [first[name] for name, _ in rows_by_table]


def _say_hot_rows(snapshot: Snapshot) -> None:
    lookups = snapshot.metrics.lookups
    if lookups is not None:
        features = snapshot.model.spec.features
        first_rows = first_rows_of([(f.table.name, f.table.rows) for f in features])
        lookups.hot_rows(lookups.rows.hot_share(first_rows))


def _huge_page_bytes(path: Path) -> int:
    """Bytes in huge pages, be they this process's own or a file's."""
    found = 0
    for line in path.read_text().splitlines():
        if line.startswith(("AnonHugePages:", "ShmemPmdMapped:", "FilePmdMapped:")):
            found += int(line.split()[1]) * 1024
    return found
