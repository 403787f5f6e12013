"""An id map to import: raw ids, their rows, and the handling of unknown ids."""

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
    """Raw ids and their rows, re-readable in chunks.

    Attributes:
        description: their origin, for messages.
        read: yields ids and rows, int64 `[N]` each; each id must come once.
        table_rows: rows of the source's table, if known.
        unknown: the handling of unknown ids, if the source determines it.
        strings: the hash function of string ids, with `seed`; None for integer ids.
        frequencies: yields rows and their use counts, int64 `[N]` each; None: unknown.
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
        """Yield ids and rows, int64 `[N]` each, of a table of this size.

        Raises WeightsError for another table size, a row out of range, or a number of ids not
        `count`.
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
