"""One rank's part of a group of features: the bags that it reads, and its output's columns.

Compiled code copies; its pseudocode is in `native/merge/parts.cpp`. Small parts keep the
GIL: releasing it and waiting for it again takes longer than the copying.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.bags import Bags
from kernels.native_library import address_of, function_of, keeping_gil, load_library
from sharded_infer.errors import InternalError

# Ids or numbers above which copying takes half a millisecond, and releases the GIL.
_MANY = 1 << 18


class _BagArrays(ctypes.Structure):
    """`BagArrays` of native/merge/parts.cpp."""

    _fields_ = (
        ("values", ctypes.c_void_p),
        ("lengths", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
    )


class _Matrix(ctypes.Structure):
    """`Matrix` of native/merge/parts.cpp."""

    _fields_ = (
        ("numbers", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("stride", ctypes.c_int64),
    )


class _Part(ctypes.Structure):
    """`Part` of native/merge/parts.cpp."""

    _fields_ = (("out", _Matrix), ("runs", ctypes.c_void_p), ("run_count", ctypes.c_int64))


def _functions(name: str, result: Any, *arguments: Any) -> tuple[Any, Any]:
    """The function that releases the GIL, and the one that keeps it."""
    library = load_library("sharded_infer")
    both = function_of(library, name, result, *arguments)
    return both, function_of(keeping_gil(library), name, result, *arguments)


_ARRAY, _NUMBER = ctypes.c_void_p, ctypes.c_int64
_BAGS, _MATRIX = ctypes.POINTER(_BagArrays), ctypes.POINTER(_Matrix)
_SELECT_BAGS = _functions(
    "sharded_infer_select_bags", None, _ARRAY, _NUMBER, _NUMBER, _NUMBER, _BAGS, _BAGS, _ARRAY
)
_WRITE_RUNS = _functions(
    "sharded_infer_write_runs", _NUMBER, _MATRIX, _ARRAY, _ARRAY, _NUMBER, _MATRIX
)
_WRITE_PARTS = _functions("sharded_infer_write_parts", _NUMBER, _ARRAY, _NUMBER, _ARRAY, _MATRIX)
_DIVIDE_MEANS = _functions(
    "sharded_infer_divide_means", _NUMBER, _ARRAY, _NUMBER, _ARRAY, _ARRAY, _NUMBER, _MATRIX
)


@dataclass(frozen=True, slots=True)
class RankPart:
    """One rank's part of a group's lookup, and the destinations of its output.

    Attributes:
        positions: int64 `[entries]`, features of the group.
        reads_everything: True if it reads all of the group's bags as they are.
        kept_rows: int64 `[entries]` each, first rows and ends: other ids are left out, these are
            made relative to the first row; None: of all rows.
        kept_hashes: uint64 `[entries]` each, first and last hashes: raw ids with others are left
            out; None: ids are rows, or of all hashes.
        runs: int64 `[runs, 4]`, the fields of each `ColumnRun`.
        only_run: first column and width, if the output is one run that is not added.
        row_bytes: bytes of a stored row: one number, or int64 `[entries]`.
    """

    positions: NDArray[np.int64]
    reads_everything: bool
    kept_rows: tuple[NDArray[np.int64], NDArray[np.int64]] | None
    kept_hashes: tuple[NDArray[np.uint64], NDArray[np.uint64]] | None
    runs: NDArray[np.int64]
    only_run: tuple[int, int] | None
    rank: int
    row_bytes: int | NDArray[np.int64]

    def bytes_of(self, bags: Bags) -> int:
        """Bytes of the rows of its bags' ids."""
        if isinstance(self.row_bytes, int):
            return bags.values.shape[0] * self.row_bytes
        return int(bags.lengths.numpy().sum(1) @ self.row_bytes)


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
        # torch takes longer for len().
        if self.entries == every.lengths.shape[0] and self.id_count == every.values.shape[0]:
            return every
        return Bags(
            every.values[self.first_id : end],
            every.lengths[self.first_entry : self.first_entry + self.entries],
            None if every.weights is None else every.weights[self.first_id : end],
        )


def all_bags(bags: Bags) -> ChosenBags:
    """All bags, in arrays of their own."""
    return ChosenBags(bags, 0, bags.lengths.shape[0], 0, bags.values.shape[0])


class BagChoice:
    """Chooses the bags of a group that each of several ranks reads, in one call; thread-safe."""

    def __init__(self, parts: Sequence[RankPart]) -> None:
        self._parts = parts
        # Compiled code reads their arrays, and those of the bytes of their rows.
        self._copied = copied = [part for part in parts if not part.reads_everything]
        self._row_bytes = [
            np.broadcast_to(part.row_bytes, part.positions.shape).copy() for part in copied
        ]
        self._selections = np.array(
            [_selection(*described) for described in zip(copied, self._row_bytes, strict=True)],
            np.int64,
        )
        self._entries = sum(len(part.positions) for part in copied)
        # A feature's columns may be cut into several entries.
        reads = np.bincount(np.concatenate([part.positions for part in copied])) if copied else [0]
        self._most_reads = int(max(reads))

    def choose(self, bags: Bags) -> list[tuple[ChosenBags, int]]:
        """Bags of each rank, and the bytes of their ids' rows."""
        copies = self._copies(bags) if self._copied else []
        if len(copies) == len(self._parts):
            return copies
        every, copied = all_bags(bags), iter(copies)
        return [
            (every, part.bytes_of(bags)) if part.reads_everything else next(copied)
            for part in self._parts
        ]

    def _copies(self, bags: Bags) -> list[tuple[ChosenBags, int]]:
        values, lengths, weights = bags.values.contiguous(), bags.lengths.contiguous(), bags.weights
        (features, count), ranks = lengths.shape, len(self._copied)
        room = len(values) * self._most_reads
        kept_values = torch.empty(room, dtype=torch.int64)
        kept_lengths = torch.empty(self._entries, count, dtype=torch.int64)
        kept_weights = None if weights is None else torch.empty(room)
        # Ids and bytes of their rows.
        kept = np.empty((ranks, 2), np.int64)
        _SELECT_BAGS[room < _MANY](
            address_of(self._selections),
            *(ranks, features, count),
            _arrays_of(values, lengths, weights),
            _arrays_of(kept_values, kept_lengths, kept_weights),
            address_of(kept),
        )
        every = Bags(kept_values, kept_lengths, kept_weights)
        chosen, first_id, first_entry = [], 0, 0
        for part, (ids, row_bytes) in zip(self._copied, kept.tolist(), strict=True):
            entries = len(part.positions)
            chosen.append((ChosenBags(every, first_entry, entries, first_id, ids), row_bytes))
            first_id += ids
            first_entry += entries
        return chosen


def _selection(part: RankPart, row_bytes: NDArray[np.int64]) -> tuple[int, ...]:
    """`Selection` of native/merge/parts.cpp."""
    rows = (0, 0) if part.kept_rows is None else map(address_of, part.kept_rows)
    hashes = (0, 0) if part.kept_hashes is None else map(address_of, part.kept_hashes)
    entries = len(part.positions), address_of(part.positions)
    return *entries, *rows, *hashes, address_of(row_bytes)


def write_parts(
    parts: Sequence[tuple[RankPart, Tensor]], repeats: Tensor | None, pooled: Tensor
) -> None:
    """Copies or adds outputs to their columns, in turn; a bag shared by samples is broadcast.

    Args:
        parts: each with its output, fp32 `[R, width]`.
        repeats: int64 `[R]`, rows of `pooled` for each bag; None: one, or all if R is 1.
        pooled: fp32 `[B, columns]`; written.

    Raises:
        InternalError: `repeats` do not sum to the rows of `pooled`.
    """
    rows, target, is_small = _address(repeats), _matrix_of(pooled), pooled.numel() < _MANY
    if len(parts) == 1:
        # The usual number, without an array.
        part, out = parts[0]
        runs = address_of(part.runs), len(part.runs)
        written = _WRITE_RUNS[is_small](_matrix_of(out), rows, *runs, target)
    else:
        described = [
            _Part(_matrix_of(out), address_of(part.runs), len(part.runs)) for part, out in parts
        ]
        listed = (_Part * len(described))(*described)
        written = _WRITE_PARTS[is_small](listed, len(described), rows, target)
    _check_rows(written, pooled)


def divide_means(
    lengths: Tensor, repeats: Tensor | None, means: NDArray[np.int64], pooled: Tensor
) -> None:
    """Divides columns by bags' lengths, in place; an empty bag stays as it is.

    Args:
        lengths: int64 `[F, R]`, ids of each bag.
        repeats, pooled: as of `write_parts`.
        means: int64 `[n, 3]`: feature, first column, width.
    """
    lengths = lengths.contiguous()
    divided = _DIVIDE_MEANS[pooled.numel() < _MANY](
        *(lengths.data_ptr(), lengths.shape[1], _address(repeats)),
        *(address_of(means), len(means), _matrix_of(pooled)),
    )
    _check_rows(divided, pooled)


def _check_rows(written: int, pooled: Tensor) -> None:
    if written != pooled.shape[0]:
        raise InternalError(f"repeats: expected {len(pooled)} rows in all, got {written}")


def _arrays_of(values: Tensor, lengths: Tensor, weights: Tensor | None) -> _BagArrays:
    return _BagArrays(values.data_ptr(), lengths.data_ptr(), _address(weights))


def _matrix_of(tensor: Tensor) -> _Matrix:
    return _Matrix(tensor.data_ptr(), tensor.shape[0], tensor.stride(0))


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
