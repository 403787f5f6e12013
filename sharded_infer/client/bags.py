"""Ids and numbers on the wire: in bags of any length, or rows of one length."""

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kernels.wording import counted
from sharded_infer.client.arrays import as_array, as_bytes, is_text
from sharded_infer.errors import RequestError


@dataclass(frozen=True, slots=True)
class Bags:
    """A feature's ids with the length of each bag.

    Attributes:
        values: int or strings `[N]`, bags concatenated; or a sequence's numbers, float `[N]` or
            `[N, K]`.
        lengths: int `[B]`, with sum N.
        weights: fp32 `[N]`; None means 1.
    """

    values: ArrayLike
    lengths: ArrayLike
    weights: ArrayLike | None = None


@dataclass(frozen=True, slots=True)
class SparseFeature:
    """A feature's ids on the wire.

    Attributes:
        ids: int `[N]`, or bytes objects `[N]` of string ids.
        lengths: int `[B]`; None: `ids_per_bag`, or one bag of all ids.
        ids_per_bag: of every bag; 0: `lengths`, or one bag of all ids.
        weights: fp32 `[N]`; None means 1.
    """

    name: str
    ids: NDArray[Any]
    lengths: NDArray[np.integer[Any]] | None = None
    ids_per_bag: int = 0
    weights: NDArray[np.floating[Any]] | None = None


@dataclass(frozen=True, slots=True)
class DenseInput:
    """A dense input's numbers on the wire: concatenated rows.

    Attributes:
        values: fp32, of all rows.
        shape: as given: `[K]` or `[B, K]`; of a sequence's numbers also `[B, L, K]`, or `[B]` with
            lengths.
        lengths: int `[B]`: ids with numbers, of each candidate; None: all equal.
    """

    name: str
    values: NDArray[np.floating[Any]]
    shape: tuple[int, ...]
    lengths: NDArray[np.integer[Any]] | None = None


Input: TypeAlias = SparseFeature | DenseInput


def read_bags(name: str, bags: Bags, *, is_user: bool) -> Input:
    """Bags of ids or numbers in wire form; RequestError for lengths or several user bags."""
    values, lengths = (
        array if array.size else array.astype(np.int64)
        for array in (as_array(name, bags.values), np.atleast_1d(as_array(name, bags.lengths)))
    )
    weights = None if bags.weights is None else as_array(name, bags.weights)
    are_numbers = values.dtype.kind == "f"
    if not values.size:
        values = values.reshape(-1)
    # Joined rows would move ids or weights to other bags. Numbers may be [N, K].
    for what, part, form in (
        ("values", None if are_numbers else values, "[N]"),
        ("lengths", lengths, "[B]"),
        ("weights", weights, "[N]"),
    ):
        if part is not None and part.ndim != 1:
            raise RequestError(
                f"input {name!r}: expected {what} {form} of Bags, got {list(part.shape)}"
            )
    if values.dtype == object:
        values = as_bytes(name, values)
    for what, array, kinds in (("ids", values, "iuOf"), ("lengths", lengths, "iu")):
        if array.dtype.kind not in kinds:
            said = "integers or strings" if array is values else "integers"
            raise RequestError(f"input {name!r}: {what} must be {said}, got {array.dtype}")
    _check_lengths(name, lengths, len(values), is_user=is_user)
    if are_numbers:
        if weights is not None:
            raise RequestError(f"input {name!r}: weights are of ids, it holds floats")
        numbers: NDArray[Any] = values.reshape(-1)
        return DenseInput(name, numbers, (lengths.size,), None if is_user else lengths)
    if weights is not None and weights.size != values.size:
        raise RequestError(
            f"input {name!r}: {counted(weights.size, 'weight')} for {counted(values.size, 'id')}"
        )
    return SparseFeature(name, values, None if is_user else lengths, weights=weights)


def _check_lengths(name: str, lengths: NDArray[Any], ids: int, *, is_user: bool) -> None:
    if lengths.size and lengths.min() < 0:
        raise RequestError(f"input {name!r}: a length is negative: {lengths.min()}")
    if lengths.sum() != ids:
        raise RequestError(
            f"input {name!r}: the lengths add up to {lengths.sum()}, but {counted(ids, 'id')} came"
        )
    if is_user and lengths.size != 1:
        raise RequestError(f"input {name!r}: a user has one bag, got {lengths.size}")


def ragged_rows(name: str, rows: NDArray[Any]) -> Bags:
    """Sequences of ids of different lengths, or of their numbers."""
    bags = [np.atleast_1d(as_array(name, row)) for row in rows.reshape(-1)]
    if any(bag.dtype == object and bag.size and not is_text(bag) for bag in bags):
        raise RequestError(f"input {name!r}: expected a sequence of ids for each bag")
    # With several numbers for each id, a bag is [L, K]; ids have no such form.
    bags = [bag if bag.dtype.kind == "f" and bag.ndim == 2 else bag.reshape(-1) for bag in bags]
    full = [bag for bag in bags if bag.size]
    if len({bag.shape[1:] for bag in full}) > 1:
        raise RequestError(f"input {name!r}: expected as many numbers for each id")
    values = np.concatenate(full) if full else np.empty(0, np.int64)
    return Bags(values, np.array([len(bag) if bag.size else 0 for bag in bags], np.int64))


def row_width(rows: Bags) -> int | None:
    """The width of rows of floats; None if they are ids or differ in length."""
    values, lengths = np.asarray(rows.values), np.asarray(rows.lengths)
    flat = values.dtype.kind == "f" and values.ndim == 1
    alike = flat and lengths.size and (lengths == lengths[0]).all()
    return int(lengths[0]) if alike and lengths[0] else None
