"""Float64 cells shared by the processes of a server, one row per worker."""

import ctypes
import mmap
import os
import threading
from collections.abc import Iterable, Sequence

from sharded_infer.errors import InternalError

CELL_BYTES = 8
# Pages that nothing was written to cost no memory.
WORKER_BYTES = 24 << 20


class MetricCells:
    """Cells in anonymous shared memory, which forked processes inherit.

    A process writes only its own row: a killed process cannot keep a shared lock, and the successor
    of a dead worker continues its counts. The parent creates the cells and has a row too. Readers
    never see half of an aligned 8-byte store, but may see part of an update of several cells.
    Threads hold `lock` while they add to `own`, this process's row.
    """

    def __init__(self, workers: int, *, worker_bytes: int = WORKER_BYTES) -> None:
        pages = -(-worker_bytes // mmap.PAGESIZE)
        row_bytes = pages * mmap.PAGESIZE
        memory = memoryview(mmap.mmap(-1, (workers + 1) * row_bytes))
        self._rows = tuple(
            memory[first : first + row_bytes].cast("d")
            for first in range(0, len(memory), row_bytes)
        )
        self._workers = workers
        self._capacity = row_bytes // CELL_BYTES
        self._used = 0
        self._maker = os.getpid()
        self.own = self._rows[workers]
        self.own_address = _address_of(self.own)
        self.lock = threading.Lock()

    def allocate(self, count: int) -> int:
        """Allocates adjacent cells in every row and returns the first; only later forks know them.

        Raises InternalError if the row is full, or another process created the cells.
        """
        if os.getpid() != self._maker:
            raise InternalError("metric cells can be allocated only by the process that made them")
        with self.lock:
            first = self._used
            if first + count > self._capacity:
                raise InternalError(
                    f"metric cells: {count} more do not fit beside {first} of {self._capacity}"
                )
            self._used += count
            return first

    def use(self, worker: int) -> None:
        """Makes a worker's row this process's own, before threads start."""
        self.own = self._row(worker)
        self.own_address = _address_of(self.own)
        # A thread of the parent may have held the old one when this process was forked.
        self.lock = threading.Lock()

    def add(self, cell: int, by: float = 1.0) -> None:
        """Adds to a cell of this process, with the lock."""
        with self.lock:
            self.own[cell] += by

    def set(self, cell: int, value: float) -> None:
        """Sets a cell of this process, with the lock."""
        with self.lock:
            self.own[cell] = value

    def write_bytes(self, cell: int, content: bytes) -> None:
        """Stores bytes from a cell on in this process's row. The caller holds the lock."""
        first = cell * CELL_BYTES
        self.own.cast("B")[first : first + len(content)] = content

    def contents(self, cell: int, count: int) -> list[bytes]:
        """Bytes of `count` cells in every row."""
        return [row[cell : cell + count].tobytes() for row in self._rows]

    def total(self, cell: int) -> float:
        """Sum of a cell over all rows."""
        return sum(row[cell] for row in self._rows)

    def values(self, cell: int) -> list[float]:
        """A cell of each worker."""
        return [row[cell] for row in self._rows[: self._workers]]

    def largest(self, cell: int) -> float:
        """Largest value of a cell over all rows."""
        return max(row[cell] for row in self._rows)

    def rows(self) -> list[Sequence[float]]:
        """All allocated cells of every row, the parent's last."""
        used = self._used
        return [row[:used].tolist() for row in self._rows]

    def clear_worker(self, worker: int, cells: Iterable[int]) -> None:
        """Sets gauges of a dead worker to 0. Raises InternalError for an unknown worker."""
        row = self._row(worker)
        for cell in cells:
            row[cell] = 0.0

    def clear(self, first: int, count: int) -> None:
        """Sets unused cells to 0 in every row."""
        for row in self._rows:
            row[first : first + count] = memoryview(bytes(count * CELL_BYTES)).cast("d")

    def _row(self, worker: int) -> "memoryview[float]":
        if not 0 <= worker < self._workers:
            raise InternalError(f"metric cells: no worker {worker} of {self._workers}")
        return self._rows[worker]


def _address_of(row: "memoryview[float]") -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(row))
