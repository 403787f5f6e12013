"""Rows of a table that publishing has reordered by their use.

Rows are in up to 16 classes, each in the order of its ids, so that 6 bits locate the row of an id:

    file: 64 bytes: N as uint64, zeros
          for each 256 of N ids, 192 bytes:
              first, uint32 [16]: of each class, the row of the next id that is in it
              bits, uint64 [4, 4]: bit j of the classes, of 64 ids a word; 0 where there is no id

    row(id) = first[class of id] + ids of its class before it in its 256

All numbers are little-endian. Ids from N on, rows that came later, are rows themselves.
"""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from kernels.abi.ids import placed_rows
from kernels.errors import InputError

MOST_CLASSES = 16
MOST_PLACES = 2**32
_HEADER_BYTES = 64
_IDS, _WORDS, _BITS = 256, 4, 4  # of a block; words of a bit; bits of a class
_FIRST_BYTES = 4 * MOST_CLASSES
_BLOCK_BYTES = _FIRST_BYTES + 8 * _WORDS * _BITS
_CHUNK = 2**13  # blocks at a time
_ONES = np.uint64(2**64 - 1)

Words = NDArray[np.uint64]


def places_bytes(count: int) -> int:
    """Bytes of the places of `count` ids."""
    return _HEADER_BYTES + -(-count // _IDS) * _BLOCK_BYTES


def write_places(order: NDArray[np.uint32]) -> NDArray[np.uint8]:
    """The file of the places of some ids.

    `order` is uint32 `[N]`, the id whose row is in each place, each once; it rises within each
    class, and falls between two. Raises InputError if it has too many classes.
    """
    count = len(order)
    starts = np.concatenate([[0], np.flatnonzero(order[1:] < order[:-1]) + 1])
    if len(starts) > MOST_CLASSES:
        raise InputError(f"row places: expected at most {MOST_CLASSES} classes, got {len(starts)}")
    file = np.zeros(places_bytes(count), np.uint8)
    file[:8] = np.array([count], "<u8").view(np.uint8)
    blocks = file[_HEADER_BYTES:].reshape(-1, _BLOCK_BYTES)
    classes = np.zeros(len(blocks) * _IDS, np.uint8)
    for number, (first, end) in enumerate(pairwise([*starts, count])):
        classes[order[first:end]] = number
    for first in range(0, len(blocks), _CHUNK):
        some = classes[first * _IDS : (first + _CHUNK) * _IDS].reshape(-1, _WORDS, 64)
        words = np.empty((len(some), _BITS, _WORDS), "<u8")
        for bit in range(_BITS):
            packed = np.packbits(some >> bit & 1, axis=2, bitorder="little")
            words[:, bit] = packed.view("<u8")[:, :, 0]
        blocks[first : first + _CHUNK, _FIRST_BYTES:] = words.reshape(len(some), -1).view(np.uint8)
    rows = np.array([*starts, *[count] * (MOST_CLASSES - len(starts))], np.int64)
    for first in range(0, len(blocks), _CHUNK):
        chunk = blocks[first : first + _CHUNK]
        counts = _counts(_words(chunk))
        before = np.cumsum(counts, axis=0) - counts
        chunk[:, :_FIRST_BYTES] = (rows + before).astype("<u4").view(np.uint8)
        rows = rows + counts.sum(axis=0)
    return file


class RowPlaces:
    """Places of a table's rows in memory, which it keeps; thread-safe.

    Attributes:
        count: ids that have a place; others are rows themselves.
        blocks: uint8 `[blocks, 192]`, as they are stored.
    """

    def __init__(self, blocks: NDArray[np.uint8], count: int, table_rows: int) -> None:
        self.blocks, self.count, self.table_rows = blocks, count, table_rows

    @classmethod
    def open(cls, memory: bytes | memoryview | NDArray[np.uint8], table_rows: int) -> "RowPlaces":
        """Opens the places of a table's rows; reads all of them.

        Raises InputError if it is no such file, there are more places than rows, or two ids have
        one.
        """
        file = np.frombuffer(memory, np.uint8)
        count = int(file[:8].view("<u8")[0]) if len(file) >= _HEADER_BYTES else 0
        if not 0 < count <= min(table_rows, MOST_PLACES) or len(file) != places_bytes(count):
            raise InputError(
                f"row places: expected those of 1 to {table_rows} ids, {_HEADER_BYTES} bytes and "
                f"{_BLOCK_BYTES} for each {_IDS}, got {count} ids in {len(file)} bytes"
            )
        if file[8:_HEADER_BYTES].any():
            raise InputError(f"row places: bytes 8 to {_HEADER_BYTES}: expected zeros")
        opened = cls(file[_HEADER_BYTES:].reshape(-1, _BLOCK_BYTES), count, table_rows)
        opened._check_each_once()
        return opened

    def rows(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Row of each id, int64 `[N]`; ids without a place, negative ones too, as they are.

        Raises InputError if a row is outside the table, because its place was overwritten.
        """
        rows = np.array(ids)
        if not placed_rows(
            self.blocks.ctypes.data, self.count, self.table_rows, rows.ctypes.data, len(rows)
        ):
            placed = (ids >= 0) & (ids < self.count)
            wrong = int((placed & (rows >= self.table_rows)).argmax())
            raise InputError(
                f"row places: id {ids[wrong]} has row {rows[wrong]}, expected one of "
                f"{self.table_rows}"
            )
        return rows

    def _check_each_once(self) -> None:
        rows: NDArray[np.int64] | None = None
        for first, chunk in self._chunks():
            words, firsts = _words(chunk), _firsts(chunk)
            counts = _counts(words)
            if first + len(chunk) == len(self.blocks):
                self._check_last(words[-1], counts[-1])
            rows = firsts[0] if rows is None else rows
            before = np.cumsum(counts, axis=0) - counts
            wrong = np.argwhere(firsts != (rows + before) % MOST_PLACES)
            if len(wrong):
                block, of_class = wrong[0]
                raise InputError(
                    f"row places: class {of_class} of ids from {(first + block) * _IDS} on: "
                    f"expected row {(rows + before)[block, of_class]}, got "
                    f"{firsts[block, of_class]}"
                )
            rows = rows + counts.sum(axis=0)
        starts = _firsts(self.blocks[:1])[0]
        ends = np.zeros(MOST_CLASSES, np.int64) if rows is None else rows
        if (
            starts[0] != 0
            or (ends[:-1] % MOST_PLACES != starts[1:]).any()
            or ends[-1] != self.count
        ):
            raise InputError(
                f"row places: expected classes that follow one another, in {self.count} rows; got "
                f"first rows {starts.tolist()} and ends {ends.tolist()}"
            )

    def _check_last(self, words: Words, counts: NDArray[np.int64]) -> None:
        """Removes the last block's unused ids from the counts."""
        ids = self.count - (len(self.blocks) - 1) * _IDS
        there = np.array([(1 << min(64, max(0, ids - 64 * n))) - 1 for n in range(_WORDS)], "<u8")
        if (words & ~there).any():
            raise InputError(f"row places: expected zeros behind id {self.count - 1}")
        counts[0] -= _IDS - ids

    def _chunks(self) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        for first in range(0, len(self.blocks), _CHUNK):
            yield first, self.blocks[first : first + _CHUNK]


def _words(blocks: NDArray[np.uint8]) -> Words:
    """uint64 `[N, 4, 4]`."""
    found = np.ascontiguousarray(blocks[:, _FIRST_BYTES:]).view("<u8")
    return found.reshape(len(blocks), _BITS, _WORDS)


def _firsts(blocks: NDArray[np.uint8]) -> NDArray[np.int64]:
    """int64 `[N, 16]`."""
    return np.ascontiguousarray(blocks[:, :_FIRST_BYTES]).view("<u4").astype(np.int64)


def _counts(words: Words) -> NDArray[np.int64]:
    """Ids of each class in each block, int64 `[N, 16]`; unused ones have class 0."""
    found = np.empty((len(words), MOST_CLASSES), np.int64)
    for number in range(MOST_CLASSES):
        wanted = np.array([0 if number >> bit & 1 else _ONES for bit in range(_BITS)], np.uint64)
        same = np.bitwise_and.reduce(words ^ wanted[:, None], axis=1)
        found[:, number] = np.bitwise_count(same).sum(axis=1)
    return found
