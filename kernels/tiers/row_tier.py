"""Rows of a table in three tiers: the first in memory, others in a cache of rows, all in a file.

Compiled code (`native/tiers/`, which has the pseudocode) finds each row's address, so that
kernels read rows of every tier alike, with the same bits.
"""

import os
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple

from kernels.abi import tiers as abi
from kernels.errors import InputError, RowReadError

# Boundaries of `TierCounts.latencies`, seconds.
LATENCIES: Final = tuple(abi.FIRST_LATENCY * 2**power for power in range(abi.LATENCIES))
# Limit of waits for rows, if no deadline comes before.
MOST_SECONDS: Final = 10.0
_MOST_ROWS: Final = 2**32 - 1
_LOADED_BYTES: Final = 16 * 2**20  # at a time


class TierCounts(NamedTuple):
    """Counts of a tier since its creation.

    Attributes:
        hot, cached, missed: ids by their rows' tier; `missed` includes ids that share another's
            read. Ids of changed rows are in none.
        unplaced: of the missed: without a slot, because all candidates were in use, or hold rows
            that are requested more often.
        used_slots: of the cache, now.
        nanoseconds: of all reads, from request to end.
        latencies: reads by that time: up to each of `LATENCIES`, and above the last.
    """

    hot: int
    cached: int
    missed: int
    unplaced: int
    reads: int
    read_bytes: int
    failed_reads: int
    used_slots: int
    nanoseconds: int
    latencies: tuple[int, ...]

    @property
    def hit_rate(self) -> float:
        """Share of the ids whose rows were in memory; 1 before there was an id."""
        held = self.hot + self.cached
        return held / (held + self.missed) if held + self.missed else 1.0


class RowTier:
    """Rows of one table, or of a part of it, of which some are in memory; thread-safe.

    Its memory is that of the hot and the cached rows; a forked process has its own from then on.

    Attributes:
        name: of the table, for messages.
        is_direct: True if the file is read past the page cache; its file system may refuse that.
    """

    def __init__(
        self,
        path: Path,
        *,
        offset: int,
        row_bytes: int,
        rows: int,
        hot_rows: int,
        cached_rows: int,
        name: str = "",
    ) -> None:
        """Opens the file, and reads nothing yet: `load` does, before the first lookup.

        Args:
            offset: of the first row in the file, bytes.
            hot_rows: the first rows, which stay in memory.
            cached_rows: capacity of the cache for others.

        Raises MemoryError if there is not enough, and OSError if the file cannot be opened.
        """
        if not (0 <= hot_rows <= rows <= _MOST_ROWS and 0 <= cached_rows <= rows - hot_rows):
            raise InputError(
                f"{path}: expected hot and cached rows of up to {min(rows, _MOST_ROWS)} rows, got "
                f"{hot_rows} and {cached_rows} of {rows}"
            )
        self.path, self.name = path, name or path.name
        self.rows, self.row_bytes, self.hot_rows = rows, row_bytes, hot_rows
        self.cached_rows = cached_rows
        self._telling = Lock()
        handle, self.is_direct = _open(path)
        fields = (offset, row_bytes, rows, hot_rows, cached_rows)
        address = abi.tier_open(abi.TierSettings(handle, self.is_direct, *fields))
        if address is None:
            os.close(handle)
            raise MemoryError(f"{path}: no memory for {hot_rows} hot, {cached_rows} cached rows")
        self.address: int = address
        self._told = self.counts()
        weakref.finalize(self, abi.tier_close, address).atexit = False

    @property
    def memory_bytes(self) -> int:
        """Memory that it takes when its cache is full."""
        held = (self.hot_rows + self.cached_rows) * self.row_bytes
        return held + self.cached_rows * abi.SLOT_BYTES

    def load(self) -> Iterator[int]:
        """Reads the hot rows, in the order of the file; yields the bytes of each step.

        Raises RowReadError if the file cannot be read, or is too short.
        """
        step = max(1, _LOADED_BYTES // self.row_bytes)
        for first in range(0, self.hot_rows, step):
            count = min(step, self.hot_rows - first)
            error = abi.tier_load(self.address, first, count)
            if error:
                raise RowReadError(f"{self._where}: rows from {first} on: {os.strerror(error)}")
            yield count * self.row_bytes

    def counts(self) -> TierCounts:
        """Its counts since its creation."""
        counts = abi.TierCounts()
        abi.tier_counts(self.address, counts)
        *numbers, latencies = (getattr(counts, name) for name in TierCounts._fields)
        return TierCounts._make((*numbers, tuple(latencies)))

    def new_counts(self) -> tuple[TierCounts, int]:
        """Counts since the last call by anyone, and its rows in memory now."""
        with self._telling:
            before, now = self._told, self.counts()
            self._told = now
        *numbers, latencies = now
        *told, told_latencies = before
        new = [one - other for one, other in zip(numbers, told, strict=True)]
        of_time = tuple(one - other for one, other in zip(latencies, told_latencies, strict=True))
        return TierCounts._make((*new, of_time)), self.hot_rows + now.used_slots

    def failure(self, missing: abi.MissingRow, seconds: float) -> RowReadError:
        """The error of a lookup."""
        if missing.why == abi.Missing.LATE:
            what = f"{missing.count} rows had not been read after {seconds:.3g} s"
        elif missing.why == abi.Missing.REFUSED:
            what = "its disk has not answered for 2 s or more: rows are read when it does again"
        elif missing.why == abi.Missing.FAILED:
            what = f"row {missing.row} cannot be read: {os.strerror(missing.error)}"
        else:
            what = f"row {missing.row} cannot be read: the file has become shorter"
        return RowReadError(f"{self._where}: {what}")

    @property
    def _where(self) -> str:
        return f"table {self.name!r}: {self.path}"


@dataclass(frozen=True, slots=True)
class TierPart:
    """A tier from one of its rows on, where a lookup's ids begin."""

    tier: RowTier
    first_row: int = 0

    def part(self, first_row: int) -> "TierPart":
        """The part of it from one of its rows on."""
        return TierPart(self.tier, self.first_row + first_row)


def _open(path: Path) -> tuple[int, bool]:
    """A file's descriptor, and True if it is read past the page cache."""
    flags = os.O_RDONLY | os.O_CLOEXEC
    try:
        return os.open(path, flags | os.O_DIRECT), True
    except OSError:
        # tmpfs before Linux 6.5, and some network file systems.
        return os.open(path, flags), False
