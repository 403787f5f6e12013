"""Columns of ids that are strings, hashed to raw ids."""

import numpy as np

from kernels.ids.id_hash import StringHash, hash_strings, joined_strings
from sharded_infer.errors import InputError, RequestError
from sharded_infer.inputs.columns import Column, Place, cells_of


def hashed_column(
    name: str, column: Column, hashed: tuple[StringHash, int], place: Place
) -> Column:
    """A column with a raw id in place of each string; numbers stay as they are.

    Args:
        column: ids, or lists of ids; text is hashed as UTF-8.
        hashed: the function and its seed.

    Raises:
        RequestError: a string is no text, or nothing was compiled that hashes; names the sample
            and the input.
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
