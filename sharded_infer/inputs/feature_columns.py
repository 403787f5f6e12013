"""Columns of a feature's ids, lengths and weights as the inputs of a request."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.wording import counted
from sharded_infer.errors import RequestError
from sharded_infer.inputs.columns import Column, Place, cells_of

Arrays = dict[str, NDArray[np.generic]]

_IDS_SAID = "expected an id or a list of ids"


def feature_arrays(name: str, values: Mapping[str, Column], place: Place) -> Arrays:
    """A feature's ids, and optional lengths and weights, from all columns.

    Returns `name` int64 `[B]`, `[B, L]` or `[N]`, with `<name>.lengths` int32 `[B]`;
    `<name>.weights` fp32, shaped as the ids. Raises RequestError if a value is not an id or weight,
    or the columns do not match.
    """
    column, weights = values[name], values.get(f"{name}.weights")
    lengths = None
    if f"{name}.lengths" in values:
        lengths = numbers_as_they_are(f"{name}.lengths", values[f"{name}.lengths"], np.int32)
    numeric = weights is None or isinstance(weights, np.ndarray)
    if numeric and isinstance(column, np.ndarray) and column.dtype.kind in "iu":
        ids = _whole(name, column, place)
        if lengths is not None and ids.ndim == 2:
            return _unpadded(name, ids, lengths, weights, place)
        return _joined(name, ids, lengths, weights)
    cells = cells_of(column)
    bags = [_bag(name, cell, number, place) for number, cell in enumerate(cells)]
    if lengths is not None and not any(isinstance(cell, list) for cell in cells):
        return _joined(name, _ids(bags), lengths, weights)
    scales = None
    if weights is not None:
        scales = _scales(f"{name}.weights", bags, cells_of(weights), place)
    if lengths is not None:
        _check_lengths(f"{name}.lengths", lengths, [len(bag) for bag in bags], place)
        counts = lengths.tolist()
        bags = [bag[:count] for bag, count in zip(bags, counts, strict=True)]
        scales = scales and [bag[:count] for bag, count in zip(scales, counts, strict=True)]
    found: Arrays = {name: _ids(bags)}
    found[f"{name}.lengths"] = np.array([len(bag) for bag in bags], np.int32)
    if scales is not None:
        with np.errstate(over="ignore"):
            joined = np.array([scale for bag in scales for scale in bag], np.float64)
            found[f"{name}.weights"] = joined.astype(np.float32)
    return found


def _joined(
    name: str,
    ids: NDArray[np.int64],
    lengths: NDArray[Any] | None,
    weights: Column | None,
) -> Arrays:
    found: Arrays = {name: ids}
    if lengths is not None:
        found[f"{name}.lengths"] = lengths
    if weights is not None:
        found[f"{name}.weights"] = numbers_as_they_are(f"{name}.weights", weights, np.float32)
    return found


def _unpadded(
    name: str,
    ids: NDArray[np.int64],
    lengths: NDArray[Any],
    weights: Column | None,
    place: Place,
) -> Arrays:
    """Bags from padded rows `[B, L]`: the first ids of each row."""
    _check_lengths(f"{name}.lengths", lengths, [ids.shape[1]] * len(ids), place)
    counts = np.arange(ids.shape[1]) < lengths[:, None]
    found: Arrays = {name: ids[counts], f"{name}.lengths": lengths}
    if weights is not None:
        scales = numbers_as_they_are(f"{name}.weights", weights, np.float32)
        if scales.shape != ids.shape:
            raise RequestError(
                f"input {name + '.weights'!r}: expected {list(ids.shape)} like its ids, got "
                f"{list(scales.shape)}"
            )
        found[f"{name}.weights"] = scales[counts]
    return found


def _check_lengths(name: str, lengths: NDArray[Any], most: list[int], place: Place) -> None:
    if lengths.shape != (len(most),):
        raise RequestError(f"input {name!r}: expected [{len(most)}], got {list(lengths.shape)}")
    for number, (length, limit) in enumerate(zip(lengths.tolist(), most, strict=True)):
        if not 0 <= length <= limit:
            raise RequestError(
                f"{place(number)}, {name!r}: expected 0 to {limit}, the ids of its row, got "
                f"{length}"
            )


def _whole(name: str, column: NDArray[np.generic], place: Place) -> NDArray[np.int64]:
    """Integers as int64; refuses uint64 values beyond its range."""
    ids = column.astype(np.int64)
    if column.dtype == np.uint64 and ids.size and int(ids.min()) < 0:
        number = int(np.argwhere(ids < 0)[0][0])
        raise RequestError(f"{place(number)}, {name!r}: {_IDS_SAID}, got one above 2^63 - 1")
    return ids


def _bag(name: str, cell: Any, number: int, place: Place) -> list[int]:
    if cell is None:
        return []
    ids = cell if isinstance(cell, list) else [cell]
    if all(type(one) is int and -(2**63) <= one < 2**63 for one in ids):
        return ids
    hint = ""
    if any(isinstance(one, float) for one in ids):
        hint = " (pandas makes floats of integers where some are missing, unless they are Int64)"
    raise RequestError(f"{place(number)}, {name!r}: {_IDS_SAID}, got {cell!r:.80}{hint}")


def _scales(name: str, bags: list[list[int]], cells: list[Any], place: Place) -> list[list[float]]:
    if len(cells) != len(bags):
        raise RequestError(f"input {name!r}: expected [{len(bags)}], got [{len(cells)}]")
    found = []
    for number, (bag, cell) in enumerate(zip(bags, cells, strict=True)):
        scales = [] if cell is None else cell if isinstance(cell, list) else [cell]
        if len(scales) != len(bag) or not all(is_number(one) for one in scales):
            raise RequestError(
                f"{place(number)}, {name!r}: expected {counted(len(bag), 'weight')}, one for each "
                f"id, got {cell!r:.80}"
            )
        found.append([float(str(one)) for one in scales])
    return found


def _ids(bags: list[list[int]]) -> NDArray[np.int64]:
    return np.array([one for bag in bags for one in bag], np.int64)


def is_number(value: object) -> bool:
    """True for a number other than a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def numbers_as_they_are(name: str, column: Column, dtype: type[np.generic]) -> NDArray[Any]:
    """A column's numbers as `dtype`, rounded if needed; RequestError for another kind."""
    kinds = "iuf" if dtype is np.float32 else "iu"
    if isinstance(column, list):
        # In CSV, each number is a list of one.
        cells = [c[0] if isinstance(c, list) and len(c) == 1 else c for c in cells_of(column)]
        try:
            column = np.array(cells)
        except ValueError:
            column = np.array(cells, object)
        column = column if column.size else np.zeros(column.shape, dtype)
    if column.dtype.kind not in kinds:
        said = "numbers" if dtype is np.float32 else "whole numbers"
        raise RequestError(f"input {name!r}: expected {said}, got {column.dtype}")
    if dtype is np.int32 and column.size and int(column.max()) >= 2**31:
        raise RequestError(f"input {name!r}: expected at most 2^31 - 1, got {int(column.max())}")
    with np.errstate(over="ignore"):
        return column.astype(dtype)
