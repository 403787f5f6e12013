"""Strings as raw ids, in columns of samples."""

from dataclasses import replace
from typing import Any

from kernels.ids.id_hash import StringHash, hash_strings, joined_strings
from sharded_infer.inputs.columns import Column, Columns, cells_of
from sharded_infer.specs.model_spec import ModelSpec


def with_hashed_strings(spec: ModelSpec, columns: Columns) -> Columns:
    """Samples with raw ids where a feature's cells are strings, or lists of them.

    Strings are hashed as the feature's tables say, text as UTF-8. Other cells stay as they are.

    Raises:
        InputError: there are strings, and nothing was compiled to hash them.
    """
    hashed: dict[str, Column] = {}
    for name, (function, seed) in spec.string_inputs.items():
        column = columns.values.get(name)
        if column is not None and not _holds_numbers(column):
            hashed[name] = _hashed(cells_of(column), function, seed)
    return replace(columns, values={**columns.values, **hashed}) if hashed else columns


def _holds_numbers(column: Column) -> bool:
    return not isinstance(column, list) and column.dtype.kind not in "OSU"


def _hashed(cells: list[Any], function: StringHash, seed: int) -> Column:
    strings = [one for cell in cells if _has_strings(cell) for one in _bag(cell)]
    data = [one.encode() if isinstance(one, str) else one for one in strings]
    ids = iter(hash_strings(function, *joined_strings(data), seed).tolist()) if data else iter(())
    found: list[Any] = []
    for cell in cells:
        if not _has_strings(cell):
            found.append(cell)
        else:
            found.append([next(ids) for _ in cell] if isinstance(cell, list) else next(ids))
    return found


def _has_strings(cell: Any) -> bool:
    bag = _bag(cell)
    return bool(bag) and all(isinstance(one, str | bytes) for one in bag)


def _bag(cell: Any) -> list[Any]:
    return cell if isinstance(cell, list) else [cell]
