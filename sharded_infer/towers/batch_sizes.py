"""Batch sizes that towers are run at.

oneDNN compiles a kernel for each product and batch size (1 to 5 ms), and keeps half a megabyte for
it permanently. Batches are therefore padded to a few sizes, fewer the more products a tower has,
which all run before the server is ready. If padding would cost more than another run, a batch runs
in several pieces:

    cost(pieces) = sum over pieces of (size + run_samples)      the least that holds the batch

Products of `kernels.product` keep nothing: a tower with no others runs at every `padded_size`,
which keeps the sizes in metrics few. Devices have sizes of their own (`engines/device/`).
"""

from collections.abc import Mapping
from typing import Final

# Limit of a tower's kernels of all sizes, in bytes.
KERNEL_BYTES: Final = 48_000_000
# By worth: the ends, powers of two, the midpoints between them, quarters, eighths. The first few
# are always there. Beyond 512 samples a larger piece is hardly quicker.
_BY_WORTH: Final = (
    *(1, 512, 64, 16, 256, 4, 32, 128, 8),
    *(96, 24, 48, 192, 12, 384, 2, 6, 80, 160, 40, 20, 3, 320, 112, 56, 28, 224, 448, 10, 14),
    *(72, 88, 104, 144, 176, 208, 288, 352, 120, 240, 36, 44, 416, 480, 52, 60),
    *(5, 7, 9, 11, 13, 15),
)
_FEWEST: Final = 9
_LARGEST: Final = max(_BY_WORTH)
# (from, step): sizes from there on are multiples of the step; at most 12% above 16 are padding,
# and 2% on average above 64.
_STEPS: Final = ((1024, 64), (256, 16), (64, 8), (16, 4), (0, 1))


class BatchSizes:
    """Sizes that one tower is run at, ascending from 1, and the pieces of a batch."""

    def __init__(self, kernel_bytes: int, run_samples: float) -> None:
        """Chooses as many sizes as `KERNEL_BYTES` allows, those of most use first.

        `run_samples` is the number of samples that take as long as the fixed part of a run.
        """
        self._has_kernels = kernel_bytes > 0
        if self._has_kernels:
            count = max(_FEWEST, KERNEL_BYTES // kernel_bytes)
            self.sizes = tuple(sorted(_BY_WORTH[:count]))
        else:
            self.sizes = tuple(padded_sizes(_LARGEST))
        self._first = _first_pieces(self.sizes, run_samples)

    def pieces(self, batch: int) -> list[int]:
        """Sizes at which a batch of at least 1 runs in turn; only the last may be padded."""
        largest = self.sizes[-1]
        whole, left = divmod(batch, largest)
        made = [largest] * whole
        while left > 0:
            made.append(self._first[left])
            left -= made[-1]
        return made

    def run_size(self, batch: int) -> int:
        """Samples that the tower is run on for a batch, padding included."""
        return sum(self.pieces(batch))

    def up_to(self, largest: int) -> list[int]:
        """Sizes to run once before batches of up to `largest` samples come.

        Without kernels only the ends.
        """
        if not self._has_kernels:
            return sorted({1, self.pieces(largest)[0]})
        return sorted({size for batch in range(1, largest + 1) for size in self.pieces(batch)})


def _first_pieces(sizes: tuple[int, ...], run_samples: float) -> Mapping[int, int]:
    """For each number of samples left, the first piece of the cheapest, least padded way."""
    best: list[tuple[float, int]] = [(0.0, 0)]
    first: dict[int, int] = {}
    for left in range(1, sizes[-1] + 1):
        ways = []
        for size in sizes:
            cost, samples = best[max(0, left - size)]
            ways.append((cost + run_samples + size, samples + size, -size))
            if size >= left:
                break
        cost, samples, piece = min(ways)
        best.append((cost, samples))
        first[left] = -piece
    return first


def padded_size(batch: int) -> int:
    """Default size for a batch of at least 1: its own, or a little more."""
    step = next(step for start, step in _STEPS if batch > start)
    return -(-batch // step) * step


def padded_sizes(largest: int) -> list[int]:
    """All values of `padded_size` for batches of up to `largest` samples."""
    sizes, size = [], 0
    while size < largest:
        size = padded_size(size + 1)
        sizes.append(size)
    return sizes
