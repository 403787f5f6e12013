"""Compiled copying of lookups' parts, if the package was built with a compiler.

The pseudocode is in `sharded_infer/native/parts.h`. Small parts keep the GIL: releasing it and
waiting for it again takes longer than the copying.
"""

import ctypes
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.bags import Bags
from kernels.native_library import address_of, keeping_gil, load_library
from sharded_infer.errors import InternalError

# Ids or numbers above which copying takes half a millisecond, and releases the GIL.
_MANY = 1 << 18


class KeptIds(NamedTuple):
    """Ids that a rank reads of each entry's bags; None: all.

    Attributes:
        rows: int64 `[entries]` each, first rows and ends: others are left out, these are made
            relative to the first row.
        hashes: uint64 `[entries]` each, first and last hashes: raw ids with others are left out.
    """

    rows: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
    hashes: tuple[NDArray[np.uint64], NDArray[np.uint64]] | None = None

    @property
    def are_all(self) -> bool:
        """True if none is left out or changed."""
        return self.rows is None and self.hashes is None


class _BagArrays(ctypes.Structure):
    """`BagArrays` of sharded_infer/native/parts.h."""

    _fields_ = (
        ("values", ctypes.c_void_p),
        ("lengths", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
    )


class _Matrix(ctypes.Structure):
    """`Matrix` of sharded_infer/native/parts.h."""

    _fields_ = (
        ("numbers", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("stride", ctypes.c_int64),
    )


def _load() -> tuple[ctypes.CDLL, ctypes.CDLL]:
    """The library called without the GIL, and with it."""
    library = load_library("sharded_infer")
    both = library, keeping_gil(library)
    matrix, array, number = ctypes.POINTER(_Matrix), ctypes.c_void_p, ctypes.c_int64
    bags = ctypes.POINTER(_BagArrays)
    for one in both:
        one.sharded_infer_select_bags.restype = None
        one.sharded_infer_select_bags.argtypes = (array, *(number,) * 3, bags, bags, array)
        one.sharded_infer_write_runs.restype = number
        one.sharded_infer_write_runs.argtypes = matrix, array, array, number, matrix
        one.sharded_infer_write_parts.restype = number
        one.sharded_infer_write_parts.argtypes = array, number, array, matrix
        one.sharded_infer_divide_means.restype = ctypes.c_int64
        one.sharded_infer_divide_means.argtypes = (
            array,
            ctypes.c_int64,
            array,
            array,
            ctypes.c_int64,
            matrix,
        )
    return both


_LIBRARIES = _load()


class ChosenBags(NamedTuple):
    """Some entries' bags, in shared arrays: views take longer than sending most bags.

    `of` has the arrays of all; `first_entry` and `first_id` are where these begin.
    """

    of: Bags
    first_entry: int
    entries: int
    first_id: int
    id_count: int

    @property
    def bag_count(self) -> int:
        """R, bags of each entry."""
        return self.of.lengths.shape[1]

    def bags(self) -> Bags:
        """These bags alone."""
        every, end = self.of, self.first_id + self.id_count
        if self.entries == len(every.lengths) and self.id_count == len(every.values):
            return every
        return Bags(
            every.values[self.first_id : end],
            every.lengths[self.first_entry : self.first_entry + self.entries],
            None if every.weights is None else every.weights[self.first_id : end],
        )


def all_bags(bags: Bags) -> ChosenBags:
    """All bags, in arrays of their own."""
    return ChosenBags(bags, 0, len(bags.lengths), 0, len(bags.values))


class Selections:
    """Bags of a group that several ranks read, chosen in one call; thread-safe."""

    def __init__(
        self,
        read: Sequence[tuple[NDArray[np.int64], KeptIds]],
        *,
        most_reads: int,
        row_bytes: Sequence[NDArray[np.int64]] = (),
    ) -> None:
        """Prepares the choice.

        Args:
            read: by rank: int64 `[entries]`, features, and the ids kept of them.
            most_reads: maximum entries of one feature, of all ranks.
            row_bytes: by rank, if wanted: int64 `[entries]`, bytes of a stored row.
        """
        # Compiled code reads these arrays.
        self._kept = tuple(read), tuple(row_bytes)
        self._most_reads = most_reads
        self._entries = [len(positions) for positions, _ in read]
        listed = zip(read, row_bytes or itertools.repeat(None, len(read)), strict=True)
        self._selections = np.array([_selection(*one, each) for one, each in listed], np.int64)

    def select(self, bags: Bags) -> tuple[list[ChosenBags], list[int]]:
        """Bags of each rank, and the bytes of their ids' rows, if wanted."""
        values, lengths, weights = bags.values.contiguous(), bags.lengths.contiguous(), bags.weights
        (features, count), ranks = lengths.shape, len(self._entries)
        room = len(values) * self._most_reads
        found = torch.empty(room, dtype=torch.int64)
        kept_lengths = torch.empty(sum(self._entries), count, dtype=torch.int64)
        kept_weights = None if weights is None else torch.empty(room)
        kept = np.empty((2, ranks), np.int64, order="F")
        _library(room).sharded_infer_select_bags(
            address_of(self._selections),
            ranks,
            features,
            count,
            _arrays_of(values, lengths, weights),
            _arrays_of(found, kept_lengths, kept_weights),
            address_of(kept.T),
        )
        ids, row_bytes = kept.tolist()
        every = Bags(found, kept_lengths, kept_weights)
        chosen, first_id, first_entry = [], 0, 0
        for count, entries in zip(ids, self._entries, strict=True):
            chosen.append(ChosenBags(every, first_entry, entries, first_id, count))
            first_id += count
            first_entry += entries
        return chosen, row_bytes


def _selection(
    positions: NDArray[np.int64], kept: KeptIds, row_bytes: NDArray[np.int64] | None
) -> tuple[int, ...]:
    """`Selection` of sharded_infer/native/parts.h."""
    rows = (0, 0) if kept.rows is None else map(address_of, kept.rows)
    hashes = (0, 0) if kept.hashes is None else map(address_of, kept.hashes)
    sizes = 0 if row_bytes is None else address_of(row_bytes)
    return len(positions), address_of(positions), *rows, *hashes, sizes


def write_runs(
    found: Tensor, repeats: Tensor | None, runs: NDArray[np.int64], pooled: Tensor
) -> None:
    """Copies or adds columns; arguments as for `RankPart.write`.

    Raises InternalError if `repeats` do not sum to the rows of `pooled`.
    """
    written = _library(pooled.numel()).sharded_infer_write_runs(
        _matrix_of(found), _address(repeats), address_of(runs), len(runs), _matrix_of(pooled)
    )
    _check_rows(written, pooled)


def write_parts(
    parts: Sequence[tuple[Tensor, NDArray[np.int64]]], repeats: Tensor | None, pooled: Tensor
) -> None:
    """`write_runs` of each part in turn: a rank's output, and its runs, as in `RankPart`.

    Raises InternalError as `write_runs`.
    """
    # `Part` of sharded_infer/native/parts.h.
    listed = np.array(
        [
            (found.data_ptr(), len(found), found.stride(0), address_of(runs), len(runs))
            for found, runs in parts
        ],
        np.int64,
    )
    written = _library(pooled.numel()).sharded_infer_write_parts(
        address_of(listed), len(parts), _address(repeats), _matrix_of(pooled)
    )
    _check_rows(written, pooled)


def divide_means(
    lengths: Tensor, repeats: Tensor | None, means: NDArray[np.int64], pooled: Tensor
) -> None:
    """Divides columns by bags' lengths, in place; an empty bag stays as it is.

    Args:
        lengths: int64 `[F, R]`, ids of each bag.
        repeats: int64 `[R]`, rows of `pooled` for each bag; None: one, or all if R is 1.
        means: int64 `[n, 3]`: feature, first column, width.
        pooled: fp32 `[B, columns]`.

    Raises:
        InternalError: as `write_runs`.
    """
    lengths = lengths.contiguous()
    divided = _library(pooled.numel()).sharded_infer_divide_means(
        lengths.data_ptr(),
        lengths.shape[1],
        _address(repeats),
        address_of(means),
        len(means),
        _matrix_of(pooled),
    )
    _check_rows(divided, pooled)


def _library(size: int) -> ctypes.CDLL:
    return _LIBRARIES[size < _MANY]


def _check_rows(written: int, pooled: Tensor) -> None:
    if written != len(pooled):
        raise InternalError(f"repeats: expected {len(pooled)} rows in all, got {written}")


def _arrays_of(values: Tensor, lengths: Tensor, weights: Tensor | None) -> _BagArrays:
    return _BagArrays(values.data_ptr(), lengths.data_ptr(), _address(weights))


def _matrix_of(tensor: Tensor) -> _Matrix:
    return _Matrix(tensor.data_ptr(), tensor.shape[0], tensor.stride(0))


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
