"""An index of raw ids: for each 64-bit id the row of its table, from one cache line for most ids.

It is read in place, from a mapped file. Unknown ids cost as much as known ones.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from kernels.abi import ids as abi
from kernels.abi.ids import MOST_STEPS, SLOTS
from kernels.errors import InputError
from kernels.ids.index_layout import (
    BUCKET,
    HEADER_BYTES,
    IndexLayout,
    filter_bits,
    hashes_of,
    homes_of,
    read_header,
)

_CHECKED_BUCKETS = 2**18  # at a time


class IdIndex:
    """An index in memory, which it keeps; thread-safe."""

    def __init__(self, memory: NDArray[np.uint8], layout: IndexLayout) -> None:
        self._buckets = memory[HEADER_BYTES:].view(BUCKET)
        self._layout = layout
        self._fields = abi.IdIndex(
            self._buckets.ctypes.data, layout.home_buckets, layout.table_rows, layout.seed
        )

    @classmethod
    def open(cls, memory: bytes | memoryview | NDArray[np.uint8]) -> "IdIndex":
        """Opens an index from all its bytes; reads its header only, with errors as `read_header`.

        A search of a bucket is one cache line if they begin at a multiple of 64.
        """
        whole = np.frombuffer(memory, np.uint8)
        return cls(whole, read_header(whole))

    @property
    def fields(self) -> abi.IdIndex:
        """Structure for compiled code, valid as long as the index is kept."""
        return self._fields

    @property
    def count(self) -> int:
        """Number of its ids."""
        return self._layout.count

    @property
    def table_rows(self) -> int:
        """Rows of the table; every row that is found lies below."""
        return self._layout.table_rows

    def rows(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Row of each int64 `[N]` id, int64 `[N]`, -1 for unknown ones; never outside the table.

        Raises InputError for ids of another dtype or shape.
        """
        if ids.dtype != np.int64 or ids.ndim != 1:
            raise InputError(f"ids: expected int64 [N], got {ids.dtype} {list(ids.shape)}")
        ids = np.ascontiguousarray(ids)
        rows = np.empty(len(ids), np.int64)
        abi.rows_of_ids(self._fields, ids.ctypes.data, len(ids), rows.ctypes.data)
        return rows

    def entries(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """All ids and their rows, int64 `[N]` each, some buckets at a time; not checked."""
        for first in range(0, len(self._buckets), _CHECKED_BUCKETS):
            buckets = self._buckets[first : first + _CHECKED_BUCKETS]
            used = np.arange(SLOTS) < (buckets["last"] & np.uint32(255))[:, None]
            yield buckets["keys"][used].view(np.int64), buckets["rows"][used].astype(np.int64)

    def check(self, table_rows: int) -> None:
        """Reads all of it and refuses contents that `id_index_parts` would not write.

        Raises InputError, with the bucket, if an id occurs twice, is in an unreachable bucket or
        has a row outside the table, or a filter or an unused slot has other bytes.
        """
        if self.table_rows != table_rows:
            raise InputError(
                f"id index: expected one for {table_rows} rows, got one for {self.table_rows}"
            )
        count, last = 0, len(self._buckets)
        # Of the keys up to MOST_STEPS behind: their hashes, and the filters so far.
        hashes, filters = np.empty(0, np.uint64), np.zeros(0, np.uint32)
        for first in range(0, last, _CHECKED_BUCKETS):
            buckets = self._buckets[first : first + _CHECKED_BUCKETS]
            keys, places = self._checked_slots(buckets, first)
            count += len(keys)
            own = hashes_of(keys, self._layout.seed)
            steps = places - homes_of(own, self._layout.home_buckets)
            if len(keys) and not 0 <= steps.min() <= steps.max() <= MOST_STEPS:
                wrong = int(((steps < 0) | (steps > MOST_STEPS)).argmax())
                raise InputError(
                    f"id index: bucket {places[wrong]}: id {_signed(keys[wrong])} is of bucket "
                    f"{places[wrong] - steps[wrong]}"
                )
            known = np.sort(np.concatenate([hashes, own]))
            twice = known[1:][known[1:] == known[:-1]]
            if len(twice):
                at = int(np.isin(own, twice).argmax())
                raise InputError(
                    f"id index: bucket {places[at]}: id {_signed(keys[at])} occurs twice"
                )
            hashes = own[places >= first + len(buckets) - MOST_STEPS]
            start = first - len(filters)
            filters = np.concatenate([filters, np.zeros(len(buckets), np.uint32)])
            _fill(filters, places - start, steps, filter_bits(own))
            # Keys of the next buckets may set bits of the last MOST_STEPS.
            final = len(filters) if first + len(buckets) == last else len(filters) - MOST_STEPS
            if final > 0:
                stored = self._buckets["last"][start : start + final] & ~np.uint32(255)
                differs = stored != filters[:final]
                if differs.any():
                    at = start + int(differs.argmax())
                    raise InputError(f"id index: bucket {at}: another filter")
                filters = filters[final:]
        if count != self.count:
            raise InputError(f"id index: expected {self.count} ids, got {count}")

    def _checked_slots(
        self, buckets: NDArray[np.void], first: int
    ) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        counts = buckets["last"] & np.uint32(255)
        used = np.arange(SLOTS) < counts[:, None]
        for what, wrong in (
            (f"more than {SLOTS} slots are used", counts > SLOTS),
            ("an unused slot is not zero", ((buckets["keys"] != 0) & ~used).any(1)),
            ("an unused slot is not zero", ((buckets["rows"] != 0) & ~used).any(1)),
            (
                f"a row is outside the table of {self.table_rows} rows",
                ((buckets["rows"].astype(np.int64) >= self.table_rows) & used).any(1),
            ),
        ):
            if wrong.any():
                raise InputError(f"id index: bucket {first + int(wrong.argmax())}: {what}")
        places = np.repeat(np.arange(len(buckets)) + first, used.sum(1))
        return buckets["keys"][used], places


def _fill(
    filters: NDArray[np.uint32],
    places: NDArray[np.int64],
    steps: NDArray[np.int64],
    bits: NDArray[np.uint32],
) -> None:
    """Sets each key's bit in the filters of its home and of the buckets up to its own."""
    step = 1
    while len(places):
        kept = steps >= step
        places, steps, bits = places[kept], steps[kept], bits[kept]
        np.bitwise_or.at(filters, places - step, bits)
        step += 1


def _signed(key: np.uint64) -> int:
    return int(key.view(np.int64))
