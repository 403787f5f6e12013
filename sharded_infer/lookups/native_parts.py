"""The compiled copying of lookups' parts, if the package was built with a compiler.

The pseudocode is in its source, `sharded_infer/native/parts.h`. Small parts keep the GIL: releasing
it and waiting for it again takes longer than the copying.
"""

import ctypes

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.bags import Bags
from kernels.native_library import address_of, keeping_gil, load_library
from sharded_infer.errors import InternalError

# Ids or numbers above which copying takes half a millisecond: others may run meanwhile.
_MANY = 1 << 18


class _Selection(ctypes.Structure):
    """`Selection` of sharded_infer/native/parts.h."""

    _fields_ = (
        ("features", ctypes.c_int64),
        ("bags", ctypes.c_int64),
        ("entries", ctypes.c_int64),
        ("positions", ctypes.c_void_p),
        ("first_rows", ctypes.c_void_p),
        ("last_rows", ctypes.c_void_p),
    )


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


def _load() -> tuple[ctypes.CDLL, ctypes.CDLL] | None:
    """The library called without the GIL, and with it; None if it was not built."""
    library = load_library("sharded_infer")
    if library is None:
        return None
    both = library, keeping_gil(library)
    matrix, array = ctypes.POINTER(_Matrix), ctypes.c_void_p
    bags = ctypes.POINTER(_BagArrays)
    for one in both:
        one.sharded_infer_select_bags.restype = ctypes.c_int64
        one.sharded_infer_select_bags.argtypes = ctypes.POINTER(_Selection), bags, bags
        one.sharded_infer_write_runs.restype = ctypes.c_int64
        one.sharded_infer_write_runs.argtypes = matrix, array, array, ctypes.c_int64, matrix
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


def has_native_parts() -> bool:
    """Whether the package was built with a compiler."""
    return _LIBRARIES is not None


def select_bags(
    bags: Bags,
    positions: NDArray[np.int64],
    most_reads: int,
    rows: tuple[NDArray[np.int64], NDArray[np.int64]] | None,
) -> Bags:
    """The bags of some features.

    Args:
        positions: int64 `[entries]`, features.
        most_reads: entries of one feature at most.
        rows: the first row of each entry and the end; other ids are left out, these are made
            relative. None: all ids as they are.
    """
    values, lengths, weights = bags.values.contiguous(), bags.lengths.contiguous(), bags.weights
    entries, (features, count) = len(positions), lengths.shape
    room = len(values) * most_reads
    found = torch.empty(room, dtype=torch.int64)
    kept_lengths = torch.empty(entries, count, dtype=torch.int64)
    kept_weights = None if weights is None else torch.empty(room)
    first_rows, last_rows = (None, None) if rows is None else map(address_of, rows)
    kept = _library(room).sharded_infer_select_bags(
        _Selection(features, count, entries, address_of(positions), first_rows, last_rows),
        _arrays_of(values, lengths, weights),
        _arrays_of(found, kept_lengths, kept_weights),
    )
    return Bags(found[:kept], kept_lengths, None if kept_weights is None else kept_weights[:kept])


def write_runs(
    found: Tensor, repeats: Tensor | None, runs: NDArray[np.int64], pooled: Tensor
) -> None:
    """Copies or adds columns; arguments as for `RankPart.write`.

    Raises:
        InternalError: `repeats` do not sum to the rows of `pooled`.
    """
    written = _library(pooled.numel()).sharded_infer_write_runs(
        _matrix_of(found), _address(repeats), address_of(runs), len(runs), _matrix_of(pooled)
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
    if _LIBRARIES is None:
        raise InternalError("the package was built without a compiler")
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
