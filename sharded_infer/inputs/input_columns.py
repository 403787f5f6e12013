"""Columns of samples as the inputs of a request, in the forms of `request_reader`."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from kernels.ids.id_hash import StringHash, hash_strings, joined_strings
from kernels.wording import counted, did_you_mean, listed
from sharded_infer.errors import InputError, RequestError
from sharded_infer.inputs.columns import Column, Columns, Place, cells_of
from sharded_infer.inputs.feature_columns import (
    Arrays,
    feature_arrays,
    is_number,
    numbers_as_they_are,
)
from sharded_infer.inputs.outcomes import is_outcome, outcome_names
from sharded_infer.inputs.request_reader import LENGTHS, VALUES, WEIGHTS
from sharded_infer.specs.model_spec import ModelSpec


def input_arrays(
    spec: ModelSpec, columns: Columns, label_columns: Mapping[str, str] | None = None
) -> Arrays:
    """One request of all samples, without labels and reference scores.

    Args:
        columns: of a feature, an id or a list of ids for each sample, or strings where the model
            hashes them; `<feature>.weights`, a weight for each id; `<feature>.lengths`, the number
            of ids of each padded row, or of each sample in joined ids; of a dense input, a number
            or a list of numbers for each sample.
        label_columns: nondefault label columns, by output; None: those of the spec's gate.

    Returns dense inputs fp32 `[B, width]`; ids int64, lengths int32 and weights fp32 of each
    feature. Raises RequestError, naming the sample and the input, for an unknown name or an invalid
    value.
    """
    values, place = columns.values, columns.place
    _refuse_unknown(spec, columns, label_columns)
    arrays: Arrays = {}
    for name, width in spec.dense.inputs.items():
        if name in values:
            arrays[name] = _dense(name, width, values[name], place)
        elif columns.rows:
            arrays[name] = _dense(name, width, [None] * columns.rows, place)
    strings = spec.string_inputs
    for name in spec.sparse_inputs:
        if name in values:
            if name in strings:
                ids = _hashed_column(name, values[name], strings[name], place)
                values = {**values, name: ids}
            arrays |= feature_arrays(name, values, place)
        else:
            # Companions without their feature are refused by it.
            parts = (f"{name}.lengths", f"{name}.weights")
            arrays |= {part: np.empty(0) for part in parts if part in values}
    arrays |= _sequence_arrays(spec, values, place)
    for name, dtype in ((VALUES, np.int64), (LENGTHS, np.int32), (WEIGHTS, np.float32)):
        if name in values:
            arrays[name] = numbers_as_they_are(name, values[name], dtype)
    return arrays


def _refuse_unknown(
    spec: ModelSpec, columns: Columns, label_columns: Mapping[str, str] | None
) -> None:
    known = set(spec.sparse_inputs) | set(spec.dense.inputs)
    known |= {f"{name}.{part}" for name in spec.sparse_inputs for part in ("lengths", "weights")}
    known |= {*spec.sequence_numbers, *(f"{name}.lengths" for name in spec.sequence_numbers)}
    known |= {f"{name}.lengths" for name in spec.sequences}
    for name in columns.values:
        if name in known or name in (VALUES, LENGTHS, WEIGHTS):
            continue
        if not is_outcome(spec, name, label_columns):
            own = (*spec.dense.inputs, *spec.sparse_inputs, *spec.sequence_numbers)
            near = did_you_mean(name, known | outcome_names(spec, label_columns))
            raise RequestError(
                f"{columns.unknown_place(name)} is not one of the model's inputs: "
                f"{listed(own)}{near}"
            )


def _sequence_arrays(spec: ModelSpec, values: Mapping[str, Column], place: Place) -> Arrays:
    arrays: Arrays = {}
    for name, width in spec.sequence_numbers.items():
        if name in values:
            arrays |= _numbers(name, width, values, place)
    # A feature with the sequence's name owns them too.
    for whole in (f"{name}.lengths" for name in spec.sequences if name not in spec.sparse_inputs):
        if whole in values:
            arrays[whole] = numbers_as_they_are(whole, values[whole], np.int32)
    return arrays


def _numbers(name: str, width: int, values: Mapping[str, Column], place: Place) -> Arrays:
    """The numbers of a sequence, `[N]` or `[N, width]` with lengths, or padded as received."""
    column, lengths = values[name], values.get(f"{name}.lengths")
    if isinstance(column, np.ndarray) and column.dtype.kind in "iuf":
        found: Arrays = {name: numbers_as_they_are(name, column, np.float32)}
        if lengths is not None:
            whole = f"{name}.lengths"
            found[whole] = numbers_as_they_are(whole, lengths, np.int32)
        return found
    counts, numbers = [], []
    for number, cell in enumerate(cells_of(column)):
        of_sample = [] if cell is None else cell if isinstance(cell, list) else [cell]
        # Parquet has arrays of arrays.
        plain = [one.tolist() if isinstance(one, np.ndarray) else one for one in of_sample]
        rows = [one if isinstance(one, list) else [one] for one in plain]
        if any(len(row) != width or not all(map(is_number, row)) for row in rows):
            raise RequestError(
                f"{place(number)}, {name!r}: expected a list with {counted(width, 'number')} for "
                f"each id, got {cell!r:.80}"
            )
        counts.append(len(rows))
        numbers += [[float(str(one)) for one in row] for row in rows]
    with np.errstate(over="ignore"):
        joined = np.array(numbers, np.float32).reshape(len(numbers), width)
    return {
        name: joined[:, 0] if width == 1 else joined,
        f"{name}.lengths": np.array(counts, np.int32),
    }


def _dense(name: str, width: int, column: Column, place: Place) -> NDArray[np.float32]:
    if isinstance(column, np.ndarray) and column.dtype.kind in "iuf":
        with np.errstate(over="ignore"):
            numbers = column.astype(np.float32)
        return numbers[:, None] if numbers.ndim == 1 and width == 1 else numbers
    # Here NaN is a number, subject to the model's policy.
    cells = column.tolist() if isinstance(column, np.ndarray) else column
    rows = []
    for number, (cell, read) in enumerate(zip(cells, cells_of(column), strict=True)):
        value = cell if isinstance(cell, float) else read
        row = value if isinstance(value, list) else [value]
        if len(row) != width or not all(is_number(one) for one in row):
            raise RequestError(
                f"{place(number)}, {name!r}: expected {counted(width, 'number')}, got {value!r:.80}"
            )
        # Integers may exceed a float's range: those become infinite.
        rows.append([float(str(one)) for one in row])
    with np.errstate(over="ignore"):
        return np.array(rows, np.float32).reshape(len(rows), width)


def _hashed_column(
    name: str, column: Column, hashed: tuple[StringHash, int], place: Place
) -> Column:
    """A column with strings, hashed as UTF-8, replaced by raw ids; numbers stay unchanged.

    `hashed` is the function and its seed. Raises RequestError, naming the sample and the input, for
    a non-string or a missing native library.
    """
    if isinstance(column, np.ndarray) and column.dtype.kind not in "SUT":
        return column
    cells = cells_of(column)
    strings = [
        _encoded(name, one, number, place)
        for number, cell in enumerate(cells)
        for one in (cell if isinstance(cell, list) else (cell,))
        if isinstance(one, str | bytes)
    ]
    if not strings:
        return column
    try:
        ids = iter(hash_strings(hashed[0], *joined_strings(strings), hashed[1]).tolist())
    except InputError as error:
        raise RequestError(f"input {name!r}: {error}") from error

    def read(one: object) -> object:
        return next(ids) if isinstance(one, str | bytes) else one

    return [[read(one) for one in cell] if isinstance(cell, list) else read(cell) for cell in cells]


def _encoded(name: str, one: str | bytes, number: int, place: Place) -> bytes:
    if isinstance(one, bytes):
        return one
    try:
        return one.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{place(number)}, {name!r}: a string is no text: {error.reason}"
        ) from error
