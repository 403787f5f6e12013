"""Reads callers' inputs as features and dense inputs.

Integers are ids, floats are dense:

                          user                    candidates
    number                one id; a dense input   -
    ints [L]              one bag of L ids        one id for each candidate
    ints [B, L]           -                       L ids for each candidate
    sequences of ints     -                       one bag for each candidate
    Bags                  one bag                 one bag for each candidate
    floats [K]            a row                   one number for each candidate
    floats [B, K]         a row, B = 1            one row for each candidate
    sequences of floats   -                       one row for each candidate, all of one width

Strings and bytes are ids too, in every form of integers: the server hashes them.

`FEATURE.weights` beside a feature has a weight for each of its ids, in the same form.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kernels.wording import counted
from sharded_infer.client.strings import encoded
from sharded_infer.errors import RequestError

# A mapping of arrays by name, a pandas DataFrame, or anything shaped like a KeyedJaggedTensor.
Inputs: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class Bags:
    """A feature's ids with the length of each bag.

    Attributes:
        values: int or strings `[N]`, one bag after another.
        lengths: int `[B]`, with sum N.
        weights: fp32 `[N]`; None means 1.
    """

    values: ArrayLike
    lengths: ArrayLike
    weights: ArrayLike | None = None


@dataclass(frozen=True, slots=True)
class SparseFeature:
    """A feature's ids as they are sent.

    Attributes:
        ids: int `[N]`, or bytes objects `[N]` of ids that are strings.
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
    """A dense input's numbers as they are sent: rows one after another.

    Attributes:
        values: fp32, of all rows.
        shape: as given: `[K]` or `[B, K]`.
    """

    name: str
    values: NDArray[np.floating[Any]]
    shape: tuple[int, ...]


Input: TypeAlias = SparseFeature | DenseInput


def read_inputs(inputs: Inputs | Sequence[Inputs] | None, *, is_user: bool) -> list[Input]:
    """Reads a caller's inputs as features and dense inputs.

    Args:
        inputs: a mapping, a DataFrame, an object shaped like a KeyedJaggedTensor (with `keys()`,
            `values()` and `lengths()`), or several of these.
        is_user: whether all candidates share them.

    Raises:
        RequestError: an input has none of the forms above, has no candidates, or is dense without a
            row for each candidate; names the input.
    """
    found = list(_read(inputs, is_user=is_user))
    if not is_user:
        _check_candidates(found)
    return found


def _check_candidates(inputs: Sequence[Input]) -> None:
    """Refuses dense inputs without a row for each candidate, if features give their number."""
    counts = {one.name: _bag_count(one) for one in inputs if isinstance(one, SparseFeature)}
    if empty := [name for name, count in counts.items() if not count]:
        raise RequestError(f"there are no candidates: input {empty[0]!r} is empty")
    largest = max(counts, key=counts.__getitem__, default="")
    candidates = counts.get(largest, 1)
    for one in inputs:
        if isinstance(one, DenseInput) and candidates > 1 and one.shape[:1] != (candidates,):
            raise RequestError(
                f"input {one.name!r}: expected a row for each of "
                f"{counted(candidates, 'candidate')} (as "
                f"{largest!r} has them), got {list(one.shape)}; what they share goes under user"
            )


def _bag_count(feature: SparseFeature) -> int:
    if feature.lengths is not None:
        return feature.lengths.size
    return feature.ids.size // max(feature.ids_per_bag, 1)


def _read(inputs: Inputs | Sequence[Inputs] | None, *, is_user: bool) -> list[Input]:
    if inputs is None:
        return []
    if isinstance(inputs, list | tuple):
        return [one for part in inputs for one in _read(part, is_user=is_user)]
    if callable(getattr(inputs, "lengths", None)) and callable(getattr(inputs, "keys", None)):
        return list(_jagged(inputs, is_user=is_user))
    if isinstance(inputs, Mapping):
        return list(_named(inputs, is_user=is_user))
    if hasattr(inputs, "columns"):
        return list(_named({str(name): inputs[name] for name in inputs.columns}, is_user=is_user))
    raise RequestError(
        "inputs: expected a mapping of arrays by name, a DataFrame or a KeyedJaggedTensor, got "
        f"{type(inputs).__name__}"
    )


def _named(inputs: Mapping[str, Any], *, is_user: bool) -> Iterator[Input]:
    """Inputs by name, `FEATURE.weights` with their features."""
    for name, value in inputs.items():
        owner, _, kind = name.rpartition(".")
        if kind == "weights" and owner in inputs:
            continue
        one = _input(name, value, is_user=is_user)
        if (weights := inputs.get(f"{name}.weights")) is not None:
            one = _weighted(one, _array(f"{name}.weights", weights))
        yield one


def _weighted(one: Input, weights: NDArray[Any]) -> SparseFeature:
    if not isinstance(one, SparseFeature):
        raise RequestError(f"input {one.name!r}: weights are of ids, it holds floats")
    if weights.dtype == object:
        weights = np.asarray(_ragged(f"{one.name}.weights", weights).values)
    flat = weights.reshape(-1)
    if flat.size != one.ids.size or (flat.size and flat.dtype.kind not in "fiu"):
        raise RequestError(
            f"input {one.name!r}: expected {counted(one.ids.size, 'weight')}, as it has ids, got "
            f"{flat.size} of {flat.dtype}"
        )
    return replace(one, weights=flat.astype(np.float32))


def _jagged(batch: Any, *, is_user: bool) -> Iterator[Input]:
    """The features of a KeyedJaggedTensor: values and lengths feature by feature."""
    keys = list(batch.keys())
    values = _array("values", batch.values())
    lengths = _array("lengths", batch.lengths())
    read_weights = getattr(batch, "weights_or_none", None)
    found = read_weights() if callable(read_weights) else None
    weights = None if found is None else _array("weights", found)
    if not keys or lengths.size % len(keys):
        raise RequestError(
            f"lengths: expected the same number for each of {counted(len(keys), 'feature')}, got "
            f"{lengths.size}"
        )
    bounds = np.cumsum([0, *lengths.reshape(len(keys), -1).sum(1).tolist()])
    if bounds[-1] != values.size:
        raise RequestError(
            f"lengths: they add up to {bounds[-1]}, but {counted(values.size, 'id')} came"
        )
    for index, key in enumerate(keys):
        part = slice(bounds[index], bounds[index + 1])
        bags = Bags(
            values[part],
            lengths.reshape(len(keys), -1)[index],
            None if weights is None else weights[part],
        )
        yield _bags(key, bags, is_user=is_user)


def _input(name: str, value: Any, *, is_user: bool) -> Input:
    if isinstance(value, Bags):
        return _bags(name, value, is_user=is_user)
    array = _array(name, value)
    if _is_text(array):
        array = _encoded(name, array)
    elif array.dtype == object:
        rows = _ragged(name, array)
        if (width := _row_width(rows)) is None:
            return _bags(name, rows, is_user=is_user)
        # What a DataFrame has as rows of numbers.
        array = np.asarray(rows.values).reshape(-1, width)
    if array.size == 0:
        # NumPy takes what is empty for floats; a dense input has no width of 0.
        array = array.astype(np.int64)
    if array.dtype.kind == "f":
        return _dense(name, array, is_user=is_user)
    if array.dtype.kind not in "iuO":
        raise RequestError(
            f"input {name!r}: expected integers, strings or floats, got {array.dtype}"
        )
    return _user_ids(name, array) if is_user else _candidate_ids(name, array)


def _user_ids(name: str, array: NDArray[Any]) -> SparseFeature:
    if array.ndim > 2 or (array.ndim == 2 and len(array) != 1):
        raise RequestError(f"input {name!r}: a user has one bag, got {list(array.shape)}")
    return SparseFeature(name, array.reshape(-1))


def _candidate_ids(name: str, array: NDArray[Any]) -> SparseFeature:
    if array.ndim == 1:
        return SparseFeature(name, array, ids_per_bag=1)
    if array.ndim != 2:
        raise RequestError(f"input {name!r}: expected [B] or [B, L], got {list(array.shape)}")
    flat = array.reshape(-1)
    if array.shape[1] == 0:
        return SparseFeature(name, flat, lengths=np.zeros(len(array), np.int64))
    return SparseFeature(name, flat, ids_per_bag=array.shape[1])


def _dense(name: str, array: NDArray[Any], *, is_user: bool) -> DenseInput:
    if array.ndim > 2 or (is_user and array.ndim == 2 and len(array) != 1):
        wanted = "[K] or [1, K]" if is_user else "[B] or [B, K]"
        raise RequestError(f"input {name!r}: expected {wanted}, got {list(array.shape)}")
    return DenseInput(name, array.reshape(-1), array.shape)


def _bags(name: str, bags: Bags, *, is_user: bool) -> SparseFeature:
    ids, lengths = _array(name, bags.values).reshape(-1), _array(name, bags.lengths).reshape(-1)
    ids, lengths = (part if part.size else part.astype(np.int64) for part in (ids, lengths))
    if ids.dtype == object:
        ids = _encoded(name, ids)
    for what, numbers, kinds in (("ids", ids, "iuO"), ("lengths", lengths, "iu")):
        if numbers.dtype.kind not in kinds:
            said = "integers or strings" if numbers is ids else "integers"
            raise RequestError(f"input {name!r}: {what} must be {said}, got {numbers.dtype}")
    if lengths.size and lengths.min() < 0:
        raise RequestError(f"input {name!r}: a length is negative: {lengths.min()}")
    if lengths.sum() != ids.size:
        raise RequestError(
            f"input {name!r}: the lengths add up to {lengths.sum()}, but "
            f"{counted(ids.size, 'id')} came"
        )
    weights = None if bags.weights is None else _array(name, bags.weights).reshape(-1)
    if weights is not None and weights.size != ids.size:
        raise RequestError(
            f"input {name!r}: {counted(weights.size, 'weight')} for {counted(ids.size, 'id')}"
        )
    if not is_user:
        return SparseFeature(name, ids, lengths, weights=weights)
    if lengths.size != 1:
        raise RequestError(f"input {name!r}: a user has one bag, got {lengths.size}")
    return SparseFeature(name, ids, weights=weights)


def _ragged(name: str, rows: NDArray[Any]) -> Bags:
    """Sequences of ids of different lengths."""
    bags = [np.atleast_1d(_array(name, row)) for row in rows.reshape(-1)]
    if any(bag.dtype == object and bag.size and not _is_text(bag) for bag in bags):
        raise RequestError(f"input {name!r}: expected a sequence of ids for each bag")
    full = [bag for bag in bags if bag.size]
    values = np.concatenate(full) if full else np.empty(0, np.int64)
    return Bags(values, np.array([bag.size for bag in bags], np.int64))


def _row_width(rows: Bags) -> int | None:
    """The width of rows of floats; None if they are ids or differ in length."""
    values, lengths = np.asarray(rows.values), np.asarray(rows.lengths)
    alike = values.dtype.kind == "f" and lengths.size and (lengths == lengths[0]).all()
    return int(lengths[0]) if alike and lengths[0] else None


def _is_text(array: NDArray[Any]) -> bool:
    """Whether an array has strings, rather than sequences or numbers."""
    return array.dtype == object and array.size > 0 and isinstance(array.flat[0], str | bytes)


def _encoded(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Strings as bytes objects, in an array of the same shape."""
    found = np.empty(array.size, object)
    found[:] = encoded(f"input {name!r}", array.reshape(-1))
    return found.reshape(array.shape)


def _array(name: str, value: Any) -> NDArray[Any]:
    """A value as an array; ragged sequences and strings as an array of objects."""
    try:
        array = np.asarray(value)
        if array.dtype.kind not in "SUT":
            return array
        # NumPy's arrays of bytes lose zeros at the end: lists are read anew.
        return array.astype(object) if hasattr(value, "dtype") else np.array(value, object)
    except ValueError:
        # NumPy refuses sequences of different lengths.
        rows = list(value)
        ragged = np.empty(len(rows), object)
        ragged[:] = rows
        return ragged
    except (TypeError, RuntimeError) as error:
        raise RequestError(f"input {name!r}: {error}") from error
