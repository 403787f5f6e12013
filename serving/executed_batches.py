"""Counts the batches of a version by the size at which they ran, as ModelStatistics reports them.

    the size's row, known, or found, or the next free one     [size, batches, decode, infer, encode]
    one more batch, and its seconds

Each process has a table of its own in the cells, since which sizes come is not known beforehand.
"""

from collections.abc import Callable, Sequence

from serving.answered_counter import Answered
from serving.metric_cells import MetricCells
from serving.statistics import BatchTotals, Duration
from sharded_infer.batch_sizes import padded_size

# Batches of up to 1,024 samples run at 60 to 120 sizes on processors.
SIZES = 256
_FIELDS = 5
# In the place of a size: all for which there was no row. They are not reported.
_OTHERS = -1.0
_MOST_KNOWN = 4096


class ExecutedBatches:
    """Where and how a version's batches are counted by size."""

    def __init__(self, cells: MetricCells) -> None:
        """Takes the cells.

        Args:
            cells: the server's.
        """
        self._cells = cells
        self._first = cells.allocate((SIZES + 1) * _FIELDS)
        self._run_size: Callable[[int], int] = padded_size
        # By samples: the row's first cell, and what must stand there. Another process may have
        # cleared it.
        self._known: dict[int, tuple[int, float]] = {}

    def run_at(self, run_size: Callable[[int], int]) -> None:
        """Says at what size the version that is counted runs a batch of so many samples."""
        self._run_size = run_size
        self._known.clear()

    def count(self, requests: Sequence[Answered], samples: int = 0) -> None:
        """Counts a batch at the size that it was padded to; the process's lock is held.

        Args:
            requests: of it that were answered, at least one.
            samples: of the batch, where it had other requests too; 0: it had none.
        """
        whole, decode, _, lookup, tower, encode, _, _ = requests[0]
        for request in requests[1:]:
            whole += request[0]
            decode += request[1]
            encode += request[5]
        samples = samples or whole
        own = self._cells.own
        found = self._known.get(samples)
        if found is None or own[found[0]] != found[1]:
            found = self._find(samples)
        row = found[0]
        own[row + 1] += 1.0
        own[row + 2] += decode
        # The batch's own, which each of its requests has.
        own[row + 3] += lookup + tower
        own[row + 4] += encode

    def totals(self) -> tuple[BatchTotals, ...]:
        """Of all processes, by ascending size."""
        sums: dict[float, list[float]] = {}
        for content in self._cells.contents(self._first, SIZES * _FIELDS):
            values = memoryview(content).cast("d")
            for row in range(0, len(values), _FIELDS):
                size, *counted = values[row : row + _FIELDS].tolist()
                # A row that another process takes just now has its size first.
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
