"""Samples as Python users have them: rows, mappings of lists or arrays, tensors, DataFrames."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sharded_infer.errors import InputError, RequestError
from sharded_infer.repeats import repeated

Sample = Mapping[str, object]
# A numeric array; or a value per sample: a number, a sequence of numbers, or None.
Column = NDArray[np.generic] | list[Any]

# A sample's place, for messages.
Place = Callable[[int], str]

# pandas' missing values, without importing it.
_MISSING = ("NAType", "NaTType")


class LineSample(dict[str, object]):
    """A sample from one line of a file; `line` counts from 1, as in editors."""

    __slots__ = ("line",)

    def __init__(self, line: int, inputs: Mapping[str, object]) -> None:
        super().__init__(inputs)
        self.line = line


@dataclass(frozen=True, slots=True)
class Columns:
    """Samples by column.

    Attributes:
        place: a sample's place for messages: `line 3`, `row 2`, `sample 2`.
        unknown_place: the place of an unknown name.
        rows: the number of samples given by row; None: given by column.
    """

    values: Mapping[str, Column]
    place: Place
    unknown_place: Callable[[str], str]
    rows: int | None = None


def columns_of(data: object) -> Columns:
    """Convert samples to columns.

    `data` is a sequence of mappings by name; a mapping of lists, arrays or tensors by name; a
    DataFrame (pandas, polars); a table of pyarrow; or columns. Raises InputError for anything else
    or an unreadable column; names it.
    """
    if isinstance(data, Columns):
        return data
    if isinstance(data, Mapping):
        named: Mapping[str, Any] = {str(name): value for name, value in data.items()}
        return _named(named, "sample", "input")
    if isinstance(data, Sequence) and not isinstance(data, str | bytes):
        return _of_rows(data)
    for names in ("column_names", "columns"):
        # A DataFrame's columns are its names, a pyarrow table's are its values.
        if hasattr(data, names) and hasattr(data, "__getitem__"):
            table: Any = data
            if twice := repeated([str(name) for name in getattr(data, names)]):
                raise RequestError(f"column {twice[0]!r} comes twice")
            named = {str(name): table[name] for name in getattr(data, names)}
            return _named(named, "row", "column")
    raise InputError(
        "samples: expected a mapping of arrays by name, a sequence of mappings or a DataFrame, got "
        f"{type(data).__name__}"
    )


def _named(named: Mapping[str, Any], sample: str, column: str) -> Columns:
    return Columns(
        {name: _column(name, value) for name, value in named.items()},
        lambda number: f"{sample} {number}",
        lambda name: f"{column} {name!r}",
    )


# Missing values are stored as None: for samples with all-distinct names, quadratically many.
_MOST_SPARSE_CELLS, _MOST_CELLS_OF_ONE = 4_000_000, 1000


def _of_rows(samples: Sequence[Any]) -> Columns:
    for number, sample in enumerate(samples):
        if not isinstance(sample, Mapping):
            raise RequestError(f"sample {number}: expected a mapping by name, got {sample!r:.80}")
    names = dict.fromkeys(name for sample in samples for name in sample)
    cells, given = len(names) * len(samples), sum(map(len, samples))
    if cells > max(_MOST_SPARSE_CELLS, _MOST_CELLS_OF_ONE * given):
        raise RequestError(
            f"{len(samples)} samples with {len(names)} names, and {given} values in all: expected "
            "the same few names in most samples"
        )

    def place(number: int) -> str:
        sample = samples[number]
        return f"line {sample.line}" if isinstance(sample, LineSample) else f"sample {number}"

    def unknown_place(name: str) -> str:
        first = next(number for number, sample in enumerate(samples) if name in sample)
        return f"{place(first)}: {name!r}"

    values = {name: [sample.get(name) for sample in samples] for name in names}
    return Columns(values, place, unknown_place, len(samples))


def _column(name: str, value: Any) -> Column:
    """A column in one of two forms; RequestError, naming it, if it is not a column."""
    if isinstance(value, list | tuple):
        return list(value)
    try:
        if hasattr(value, "detach"):
            tensor = value.detach().cpu()
            # NumPy has no bfloat16.
            value = tensor.float() if tensor.is_floating_point() else tensor
        elif _has_nulls(value):
            # In an array, integers would become floats.
            return list((getattr(value, "to_pylist", None) or value.to_list)())
        array = np.asarray(value.to_numpy() if hasattr(value, "to_numpy") else value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise RequestError(f"input {name!r}: cannot be read as an array: {error}") from error
    if array.dtype.kind == "O":
        cells: list[Any] = array.tolist()
        return cells if isinstance(cells, list) else [cells]
    return array.reshape(1) if array.ndim == 0 else array


def _has_nulls(column: Any) -> bool:
    """True if a pyarrow or polars column has missing values; pandas marks those by values."""
    count = getattr(column, "null_count", 0)
    return bool(count() if callable(count) else count)


def cells_of(column: Column) -> list[Any]:
    """A column as one value for each sample: numbers, or lists of them; None if missing."""
    cells = column.tolist() if isinstance(column, np.ndarray) else column
    return [_cell(cell) for cell in cells]


def _cell(value: Any) -> Any:
    if isinstance(value, float) and value != value:
        return None
    if type(value).__name__ in _MISSING:
        return None
    if isinstance(value, list | tuple):
        return [one.item() if hasattr(one, "item") else one for one in value]
    # Arrays, NumPy's numbers and tensors.
    return value.tolist() if hasattr(value, "tolist") else value
