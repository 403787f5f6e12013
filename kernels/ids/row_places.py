"""Where the rows of a table lie that publishing has put in another order: a place for each id.

    places, uint32 [N], little-endian: the row that id i reads is places[i]

Each of 0 to N - 1 is there once. Ids from N on, rows that came later, are rows themselves.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from kernels.errors import InputError

PLACE_BYTES = 4
MOST_PLACES = 2**32
_CHUNK = 2**22  # places that are checked at a time


class RowPlaces:
    """The places of a table's rows in memory, which it keeps; many threads may read it at once."""

    def __init__(self, places: NDArray[np.uint32], table_rows: int) -> None:
        self._places, self.table_rows = places, table_rows

    @classmethod
    def open(cls, memory: bytes | memoryview, table_rows: int) -> "RowPlaces":
        """Opens the places of a table's rows; reads all of them.

        Args:
            table_rows: of the table.

        Raises:
            InputError: there are more places than rows, a row has two places, or one has none.
        """
        size = len(memory)
        if size % PLACE_BYTES or not 0 < size <= min(table_rows, MOST_PLACES) * PLACE_BYTES:
            raise InputError(
                f"row places: expected {PLACE_BYTES} bytes for each of at most {table_rows} rows, "
                f"got {size} bytes"
            )
        opened = cls(np.frombuffer(memory, "<u4"), table_rows)
        opened._check_each_once()
        return opened

    @property
    def count(self) -> int:
        """Ids that have a place; others are rows themselves."""
        return len(self._places)

    @property
    def array(self) -> NDArray[np.uint32]:
        """uint32 `[count]`: the row of each id."""
        return self._places

    def rows(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """The row of each id, int64 `[N]`; ids without a place, negative ones too, as they are.

        Raises:
            InputError: a row is outside the table, because its place was overwritten.
        """
        has_place = (ids >= 0) & (ids < self.count)
        rows = np.where(has_place, self._places[np.where(has_place, ids, 0)], ids)
        wrong = np.flatnonzero(has_place & (rows >= self.table_rows))
        if len(wrong):
            raise InputError(
                f"row places: id {ids[wrong[0]]} has row {rows[wrong[0]]}, expected one of "
                f"{self.table_rows}"
            )
        return rows

    def _chunks(self) -> Iterator[tuple[int, NDArray[np.uint32]]]:
        for first in range(0, self.count, _CHUNK):
            yield first, self._places[first : first + _CHUNK]

    def _check_each_once(self) -> None:
        met = np.zeros(self.count, np.bool_)
        for first, places in self._chunks():
            outside = places >= self.count
            if outside.any():
                at = int(outside.argmax())
                raise InputError(
                    f"row places: id {first + at} has row {places[at]}, expected 0 to "
                    f"{self.count - 1}"
                )
            met[places] = True
        if not met.all():
            raise InputError(
                f"row places: no id has row {int(met.argmin())}, expected each of {self.count} "
                "rows once"
            )
