"""An id map to import: raw ids, their rows, and what unknown ids mean."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kernels.wording import counted
from sharded_infer.errors import WeightsError
from sharded_infer.specs.id_map_spec import HashedRows as HashedRows
from sharded_infer.specs.id_map_spec import SharedRows as SharedRows

Ids = NDArray[np.int64]
Chunk = tuple[Ids, Ids]


Unknown = Literal["error", "zero"] | SharedRows | HashedRows


@dataclass(frozen=True, slots=True)
class IdMapSource:
    """Raw ids and their rows, read in chunks, as often as they are needed.

    Attributes:
        description: where they are, for messages.
        count: the number of ids.
        read: yields ids and rows, int64 `[N]` each; each id is to come once.
        table_rows: rows of the table that the source belongs to, if it says so.
        unknown: what an id means that is not there, if the source says so.
        strings: the function that made ids of strings; None if they are no strings.
        seed: of that function.
        frequencies: yields rows and how often each is used, int64 `[N]` each; None: unknown.
    """

    description: str
    count: int
    read: Callable[[], Iterator[Chunk]]
    table_rows: int | None = None
    unknown: Unknown | None = None
    strings: Literal["xxh3_64", "murmur3_x64_128"] | None = None
    seed: int = 0
    frequencies: Callable[[], Iterator[Chunk]] | None = None

    def chunks(self, table_rows: int) -> Iterator[Chunk]:
        """Ids and rows of a table of so many rows, int64 `[N]` each.

        Raises:
            WeightsError: the table has other rows, an id's row is none of it, or more or fewer
                ids come than `count`.
        """
        if self.table_rows not in (None, table_rows):
            raise WeightsError(
                f"{self.description}: maps ids to a table of {counted(self.table_rows or 0, 'row')}"
                f", expected {table_rows}"
            )
        seen = 0
        for ids, rows in self.read():
            wrong = np.flatnonzero((rows < 0) | (rows >= table_rows))
            if len(wrong):
                first = int(wrong[0])
                raise WeightsError(
                    f"{self.description}: id {ids[first]} (entry {seen + first}) has row "
                    f"{rows[first]}, expected one of {counted(table_rows, 'row')}"
                )
            seen += len(ids)
            yield ids, rows
        if seen != self.count:
            raise WeightsError(
                f"{self.description}: expected {counted(self.count, 'id')}, got {seen}"
            )
