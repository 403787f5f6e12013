"""Reading of callers' inputs as features and dense inputs.

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

Numbers that come with the ids of a sequence have the forms of the ids, as floats. K numbers for
each id add a dimension of K:

    floats [L], [L, K]    those of L ids          (floats [B, L]) of L ids for each candidate
    floats [B, L, K]      B = 1                   of L ids for each candidate
    sequences of floats   -                       of as many ids for each candidate; also [L, K]
    Bags                  of one bag              of one bag for each candidate: floats [N], [N, K]

Strings and bytes are ids too, in every form of integers: the server hashes them.

`FEATURE.weights` beside a feature has a weight for each of its ids, in the same form.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kernels.wording import counted
from sharded_infer.client.arrays import as_array, as_bytes, is_text
from sharded_infer.client.bags import (
    Bags,
    DenseInput,
    Input,
    SparseFeature,
    ragged_rows,
    read_bags,
    row_width,
)
from sharded_infer.errors import RequestError

# A mapping of arrays by name, a pandas DataFrame, or anything shaped like a KeyedJaggedTensor.
Inputs: TypeAlias = Any


def read_inputs(inputs: Inputs | Sequence[Inputs] | None, *, is_user: bool) -> list[Input]:
    """Read a caller's inputs as features and dense inputs.

    `inputs` are a mapping, a DataFrame, an object shaped like a KeyedJaggedTensor (with `keys()`,
    `values()` and `lengths()`), or several of these; all candidates share a user's. Raises
    RequestError, naming the input, if it has none of the forms above, has no candidates, or is
    dense without a row for each candidate.
    """
    found = list(_read(inputs, is_user=is_user))
    if not is_user:
        _check_candidates(found)
    return found


def _check_candidates(inputs: Sequence[Input]) -> None:
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
    for name, value in inputs.items():
        owner, _, kind = name.rpartition(".")
        if kind == "weights" and owner in inputs:
            continue
        one = _input(name, value, is_user=is_user)
        if (weights := inputs.get(f"{name}.weights")) is not None:
            weights = as_array(f"{name}.weights", weights)
            ids, form = _form(name, value), _form(f"{name}.weights", weights)
            if ids != form:
                raise RequestError(
                    f"input {name!r}: expected a weight for each id: bags of {ids}, got {form}"
                )
            one = _weighted(one, weights)
        yield one


def _form(name: str, value: Any) -> list[int]:
    """The lengths of bags, or the number of values that are in none."""
    array = as_array(name, value.values if isinstance(value, Bags) else value)
    if array.dtype == object and not is_text(array):
        return [int(length) for length in np.asarray(ragged_rows(name, array).lengths)]
    return [array.shape[1]] * len(array) if array.ndim == 2 else [array.size]


def _weighted(one: Input, weights: NDArray[Any]) -> SparseFeature:
    if not isinstance(one, SparseFeature):
        raise RequestError(f"input {one.name!r}: weights are of ids, it holds floats")
    if weights.dtype == object:
        weights = np.asarray(ragged_rows(f"{one.name}.weights", weights).values)
    flat = weights.reshape(-1)
    if flat.size != one.ids.size or (flat.size and flat.dtype.kind not in "fiu"):
        raise RequestError(
            f"input {one.name!r}: expected {counted(one.ids.size, 'weight')}, as it has ids, got "
            f"{flat.size} of {flat.dtype}"
        )
    return replace(one, weights=flat.astype(np.float32))


def _jagged(batch: Any, *, is_user: bool) -> Iterator[Input]:
    keys = list(batch.keys())
    values = as_array("values", batch.values())
    lengths = as_array("lengths", batch.lengths())
    read_weights = getattr(batch, "weights_or_none", None)
    found = read_weights() if callable(read_weights) else None
    weights = None if found is None else as_array("weights", found)
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
        yield read_bags(key, bags, is_user=is_user)


def _input(name: str, value: Any, *, is_user: bool) -> Input:
    if isinstance(value, Bags):
        return read_bags(name, value, is_user=is_user)
    array = as_array(name, value)
    if is_text(array):
        array = as_bytes(name, array)
    elif array.dtype == object:
        rows = ragged_rows(name, array)
        if (width := row_width(rows)) is None:
            return read_bags(name, rows, is_user=is_user)
        # A DataFrame's rows of numbers.
        array = np.asarray(rows.values).reshape(-1, width)
    if array.size == 0:
        # NumPy takes empty values for floats; a dense input has no width of 0.
        array = array.astype(np.int64)
    if array.dtype.kind == "f":
        return _dense(name, array, is_user=is_user)
    if array.dtype.kind not in "iuO":
        raise RequestError(
            f"input {name!r}: expected integers, strings or floats, got {array.dtype}"
        )
    return _user_ids(name, array) if is_user else _candidate_ids(name, array)


def _user_ids(name: str, array: NDArray[Any]) -> SparseFeature:
    # Empty ones may be the numbers of a history without positions, [1, 0, K] or [0, K].
    if array.size and (array.ndim > 2 or (array.ndim == 2 and len(array) != 1)):
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
    if array.ndim > 3 or (is_user and array.ndim == 3 and len(array) != 1):
        wanted = "[K], [L, K] or [1, L, K]" if is_user else "[B], [B, K] or [B, L, K]"
        raise RequestError(f"input {name!r}: expected {wanted}, got {list(array.shape)}")
    return DenseInput(name, array.reshape(-1), array.shape)
