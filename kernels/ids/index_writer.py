"""Writer of an index of raw ids, in bounded memory.

Temporary files hold one range of buckets each; a range is read, sorted by hash and written. The
bytes depend on the ids and rows alone, not on their order, unless the ids were chosen to share
buckets: a random seed then spreads them.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from secrets import randbits
from tempfile import TemporaryFile
from typing import IO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernels.abi.ids import MOST_PENDING, MOST_STEPS, SLOTS, IdIndex, PendingIds, place_ids
from kernels.errors import InputError, InternalError
from kernels.ids.index_layout import (
    BUCKET,
    IDS_OF_A_HOME,
    MOST_HOMES,
    MOST_ROWS,
    IndexLayout,
    hashes_of,
    homes_of,
)

_IDS_OF_A_PART = 2**20
_MOST_PARTS = 256  # open files
_SEEDS, _RANDOM_SEEDS = 4, 16
_ENTRY = np.dtype([("key", "<u8"), ("row", "<u4")])

Chunk = tuple[NDArray[np.int64], NDArray[np.int64]]


def id_index_parts(
    chunks: Iterable[Chunk], count: int, table_rows: int, *, folder: Path | None = None
) -> Iterator[memoryview]:
    """Parts of an index in order; memory does not grow with the number of ids up to 268 million.

    Args:
        chunks: ids, int64 `[N]`, and the row of each, int64 `[N]`. Read once.
        count: of all ids.
        folder: for temporary files of 12 bytes an id; None: the system's.

    Raises:
        InputError: a chunk has another dtype or shape, a row is outside the table, an id occurs
            twice, or the number of ids is not `count`. Names the id and its position.
    """
    if not 0 <= table_rows <= MOST_ROWS:
        raise InputError(f"id index: expected a table of up to {MOST_ROWS} rows, got {table_rows}")
    homes = max(1, -(-count // IDS_OF_A_HOME))
    if homes > MOST_HOMES:
        raise InputError(f"id index: expected up to {MOST_HOMES * IDS_OF_A_HOME} ids, got {count}")
    entries = _entries(chunks, count, table_rows)
    # Whoever chooses ids knows the first seeds, and cannot know the others.
    for seed in (*range(_SEEDS), *(randbits(64) for _ in range(_RANDOM_SEEDS))):
        layout = IndexLayout(count, table_rows, homes, seed)
        with ExitStack() as stack:
            ranges = _ranges(entries, layout, folder, stack)
            if _fits(ranges, layout):
                yield memoryview(layout.header())
                yield from _buckets(ranges, layout)
                return
            # The keys share too many buckets: they are spread by the next seed.
            entries = _kept(ranges, stack.pop_all())
    raise InternalError("id index: the ids share too many buckets under each of many seeds")


class _Range(NamedTuple):
    """A range of buckets, and the file of the ids whose home is there."""

    first: int
    last: int
    file: IO[bytes]

    def entries(self, most: int = -1) -> NDArray[np.void]:
        self.file.seek(0)
        return np.fromfile(self.file, _ENTRY, most)


def _entries(chunks: Iterable[Chunk], count: int, table_rows: int) -> Iterator[NDArray[np.void]]:
    came = 0
    for keys, rows in chunks:
        if not keys.dtype == rows.dtype == np.int64 or keys.ndim != 1 or keys.shape != rows.shape:
            raise InputError(
                f"ids from {came}: expected ids and rows int64 [N], got {keys.dtype} "
                f"{list(keys.shape)} and {rows.dtype} {list(rows.shape)}"
            )
        outside = (rows < 0) | (rows >= table_rows)
        if outside.any():
            at = int(outside.argmax())
            raise InputError(
                f"id {keys[at]} at {came + at}: expected a row of 0 to {table_rows - 1}, "
                f"got {rows[at]}"
            )
        came += len(keys)
        for first in range(0, len(keys), _IDS_OF_A_PART):
            part = slice(first, first + _IDS_OF_A_PART)
            entries = np.empty(len(keys[part]), _ENTRY)
            entries["key"], entries["row"] = keys[part].view(np.uint64), rows[part]
            yield entries
    if came != count:
        raise InputError(f"id index: expected {count} ids, got {came}")


def _kept(ranges: list[_Range], files: ExitStack) -> Iterator[NDArray[np.void]]:
    """Ids of abandoned ranges, whose files are then closed."""
    with files:
        for each in ranges:
            each.file.seek(0)
            while len(part := np.fromfile(each.file, _ENTRY, _IDS_OF_A_PART)):
                yield part


def _ranges(
    chunks: Iterator[NDArray[np.void]], layout: IndexLayout, folder: Path | None, stack: ExitStack
) -> list[_Range]:
    homes = layout.home_buckets
    parts = min(_MOST_PARTS, max(1, layout.count // _IDS_OF_A_PART), homes)
    bounds = [homes * part // parts for part in range(parts + 1)]
    ranges = []
    for first, last in pairwise(bounds):
        file = TemporaryFile(dir=folder)  # noqa: SIM115 - the caller's stack closes it
        ranges.append(_Range(first, last, stack.enter_context(file)))
    starts = np.array(bounds[1:-1], np.int64)
    for entries in chunks:
        places = homes_of(hashes_of(entries["key"], layout.seed), homes)
        of_part = np.searchsorted(starts, places, "right").astype(np.uint16)
        ordered = entries[np.argsort(of_part, kind="stable")]
        ends = np.cumsum(np.bincount(of_part, minlength=parts)).tolist()
        for each, (first, last) in zip(ranges, pairwise([0, *ends]), strict=True):
            each.file.write(ordered[first:last].data)
    return ranges


def _fits(ranges: list[_Range], layout: IndexLayout) -> bool:
    """True if no key is more than MOST_STEPS behind its home.

    The keys that wait behind bucket i are max(0, those behind bucket i - 1 + own - 5). None waits
    longer than such keys exist without a break.
    """
    waiting = waited = 0
    for each in ranges:
        size = each.file.seek(0, 2) // _ENTRY.itemsize
        most = 2 * IDS_OF_A_HOME * (each.last - each.first) + MOST_PENDING
        entries = each.entries(most)
        hashes = hashes_of(entries["key"], layout.seed)
        if size > most:
            _refuse_twice(entries, hashes, np.argsort(hashes))
            return False
        places = homes_of(hashes, layout.home_buckets) - each.first
        own = np.bincount(places, minlength=each.last - each.first) - SLOTS
        own[0] += waiting
        total = np.cumsum(own)
        behind = total - np.minimum.accumulate(np.minimum(total, 0))
        free = np.flatnonzero(behind == 0)
        gaps = np.diff(np.concatenate([[-1 - waited], free, [len(behind)]])) - 1
        if gaps.max() > MOST_STEPS:
            _refuse_twice(entries, hashes, np.argsort(hashes))
            return False
        waiting, waited = int(behind[-1]), int(gaps[-1])
    return waited + -(-waiting // SLOTS) <= MOST_STEPS


def _buckets(ranges: list[_Range], layout: IndexLayout) -> Iterator[memoryview]:
    pending = PendingIds()
    fields = IdIndex(None, layout.home_buckets, layout.table_rows, layout.seed)
    for each in ranges:
        entries = each.entries()
        hashes = hashes_of(entries["key"], layout.seed)
        order = np.argsort(hashes)
        _refuse_twice(entries, hashes, order)
        keys, rows = entries["key"][order], entries["row"][order]
        behind = MOST_STEPS if each is ranges[-1] else 0
        buckets = np.zeros(each.last - each.first + behind, BUCKET)
        # `pending` has the keys from full earlier buckets, and gets those of these.
        if place_ids(
            *(fields, each.first, len(buckets), keys.ctypes.data, rows.ctypes.data, len(keys)),
            *(pending, buckets.ctypes.data),
        ):
            raise InternalError(
                f"id index: ids of buckets from {each.first} on lie too far from home"
            )
        yield buckets.view(np.uint8).data
    if pending.count:
        raise InternalError(f"id index: {pending.count} ids found no bucket")


def _refuse_twice(
    entries: NDArray[np.void], hashes: NDArray[np.uint64], order: NDArray[np.int64]
) -> None:
    ordered = hashes[order]
    twice = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(twice):
        one, other = entries[order[twice[0]]], entries[order[twice[0] + 1]]
        raise InputError(
            f"id {one['key'].view(np.int64)} occurs twice, for rows {one['row']} and {other['row']}"
        )
