"""One rank's part of a group of features: its bags, and its output's destinations."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from kernels.bags import Bags
from sharded_infer.lookups import native_parts


@dataclass(frozen=True, slots=True)
class RankPart:
    """One rank's part of a group's lookup, and the destinations of its output.

    Attributes:
        positions: int64 `[entries]`, features of the group.
        reads_all: True if these are all features of the group, in order.
        most_reads: maximum entries of a feature: its columns may be cut into several.
        kept: ids of its features' bags that it reads.
        runs: int64 `[runs, 4]`, the fields of each `ColumnRun`.
        only_run: first column and width, if the output is one run that is not added.
        row_bytes: bytes of a stored row: one number, or int64 `[entries]`.
    """

    positions: NDArray[np.int64]
    reads_all: bool
    most_reads: int
    kept: native_parts.KeptIds
    runs: NDArray[np.int64]
    only_run: tuple[int, int] | None
    rank: int
    row_bytes: int | NDArray[np.int64]

    @property
    def reads_everything(self) -> bool:
        """True if it reads the group's bags as they are."""
        return self.reads_all and self.kept.are_all

    def select(self, bags: Bags) -> Bags:
        """The group's bags that the rank reads, with the ids of its rows; see `KeptIds`."""
        if self.reads_everything:
            return bags
        read = ((self.positions, self.kept),)
        [chosen], _ = native_parts.Selections(read, most_reads=self.most_reads).select(bags)
        return chosen.bags()

    def write(self, found: Tensor, repeats: Tensor | None, pooled: Tensor) -> None:
        """Copies or adds an output to its columns; a bag shared by samples is broadcast.

        Args:
            found: fp32 `[R, width]`.
            repeats: int64 `[R]`, rows of `pooled` for each of `found`; None: one, or all if R is 1.
            pooled: fp32 `[B, columns]`; written.
        """
        native_parts.write_runs(found, repeats, self.runs, pooled)


def selections_of(parts: Sequence[RankPart]) -> native_parts.Selections | None:
    """One choice of all their bags; None: separate choices are faster."""
    is_free = any(part.reads_everything for part in parts)
    if len(parts) < 2 or is_free:
        return None
    most_reads = int(np.bincount(np.concatenate([part.positions for part in parts])).max())
    return native_parts.Selections(
        [(part.positions, part.kept) for part in parts],
        most_reads=most_reads,
        row_bytes=[np.broadcast_to(part.row_bytes, part.positions.shape).copy() for part in parts],
    )


def write_parts(
    parts: Sequence[tuple[RankPart, Tensor]], repeats: Tensor | None, pooled: Tensor
) -> None:
    """`RankPart.write` of each in turn."""
    native_parts.write_parts([(found, part.runs) for part, found in parts], repeats, pooled)
