"""Batches of a version by executed size, for ModelStatistics.

Each process has its own table of rows `[size, batches, decode, infer, encode]` in the cells,
since the sizes are not known beforehand.
"""

from collections.abc import Callable

from serving.metrics.cells import MetricCells
from serving.metrics.totals import BatchTotals, Duration
from sharded_infer.towers.batch_sizes import padded_size

# Batches of up to 1,024 samples run at 60 to 120 sizes on processors.
SIZES = 256
_FIELDS = 5
# Stands for a size: all sizes for which no row was left. They are not reported.
_OTHERS = -1.0
_MOST_KNOWN = 4096


class ExecutedBatches:
    """A version's batches by size."""

    def __init__(self, cells: MetricCells) -> None:
        self._cells = cells
        self._first = cells.allocate((SIZES + 1) * _FIELDS)
        self._run_size: Callable[[int], int] = padded_size
        # By samples: the row's first cell and its expected value, which another process may have
        # cleared.
        self._known: dict[int, tuple[int, float]] = {}

    def run_at(self, run_size: Callable[[int], int]) -> None:
        """Sets the function from a batch's samples to its executed size."""
        self._run_size = run_size
        self._known.clear()

    def count(self, samples: int, decode: float, infer: float, encode: float) -> None:
        """Counts a batch. The caller holds the process's lock.

        Args:
            decode, encode: seconds, summed over its requests.
            infer: seconds of the batch itself.
        """
        own = self._cells.own
        known = self._known.get(samples)
        if known is None or own[known[0]] != known[1]:
            known = self._find(samples)
        row = known[0]
        own[row + 1] += 1.0
        own[row + 2] += decode
        own[row + 3] += infer
        own[row + 4] += encode

    def totals(self) -> tuple[BatchTotals, ...]:
        """Totals of all processes, by ascending size."""
        sums: dict[float, list[float]] = {}
        for content in self._cells.contents(self._first, SIZES * _FIELDS):
            values = memoryview(content).cast("d")
            for row in range(0, len(values), _FIELDS):
                size, *counted = values[row : row + _FIELDS].tolist()
                # A row that another process is claiming has its size first.
                if counted[0]:
                    known = sums.get(size, [0.0] * len(counted))
                    sums[size] = [a + b for a, b in zip(known, counted, strict=True)]
        return tuple(
            BatchTotals(
                size=int(size),
                decode=Duration.of(batches, decode),
                infer=Duration.of(batches, infer),
                encode=Duration.of(batches, encode),
            )
            for size, (batches, decode, infer, encode) in sorted(sums.items())
        )

    def _find(self, samples: int) -> tuple[int, float]:
        own = self._cells.own
        size = float(self._run_size(samples))
        last = self._first + SIZES * _FIELDS
        for row in range(self._first, last, _FIELDS):
            if own[row] in (size, 0.0):
                own[row] = size
                break
        else:
            row, size = last, _OTHERS
            own[row] = size
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[samples] = row, size
        return row, size
