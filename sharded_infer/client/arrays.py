"""Callers' values as arrays."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sharded_infer.client.strings import encoded
from sharded_infer.errors import RequestError


def is_text(array: NDArray[Any]) -> bool:
    """True if an array has strings, rather than sequences or numbers."""
    return array.dtype == object and array.size > 0 and isinstance(array.flat[0], str | bytes)


def as_bytes(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Strings as bytes objects, in an array of the same shape."""
    found = np.empty(array.size, object)
    found[:] = encoded(f"input {name!r}", array.reshape(-1))
    return found.reshape(array.shape)


def as_array(name: str, value: Any) -> NDArray[Any]:
    """A value as an array; ragged sequences and strings as an array of objects."""
    try:
        array = np.asarray(value)
        if array.dtype.kind not in "SUT":
            return array
        # NumPy's arrays of bytes lose trailing zeros: lists are read anew.
        return array.astype(object) if hasattr(value, "dtype") else np.array(value, object)
    except ValueError:
        # NumPy refuses sequences of different lengths.
        rows = list(value)
        ragged = np.empty(len(rows), object)
        ragged[:] = rows
        return ragged
    except (TypeError, RuntimeError) as error:
        raise RequestError(f"input {name!r}: {error}") from error
