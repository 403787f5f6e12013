"""Strings on the wire: BYTES tensors, whose elements are hashed to raw ids.

each element: its length in 4 bytes, little-endian, and its bytes
"""

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from kernels.ids.id_hash import StringHash, hash_strings, joined_strings
from kernels.wording import counted
from sharded_infer.errors import InputError, RequestError

BYTES = "BYTES"
_LENGTH_BYTES = 4


def packed_strings(strings: Iterable[bytes]) -> bytes:
    """The elements of a tensor as they are sent."""
    return b"".join(len(one).to_bytes(_LENGTH_BYTES, "little") + one for one in strings)


def hashed_strings(
    name: str,
    shape: Iterable[int],
    data: bytes | memoryview | Iterable[object],
    hashed: tuple[StringHash, int],
) -> NDArray[np.int64]:
    """The raw id of each element of a tensor, int64 `[N]`.

    Args:
        name: of the input.
        data: the elements as they are sent, or as bytes objects.
        hashed: the function and its seed.

    Raises:
        RequestError: other than the shape's elements came, or one is cut.
    """
    elements = math.prod(shape)
    if isinstance(data, (bytes, memoryview)):
        strings = _unpacked(name, bytes(data), elements)
    else:
        strings = [one for one in data if isinstance(one, bytes)]
    if len(strings) != elements:
        raise RequestError(
            f"input {name!r}: BYTES {list(shape)} has {elements} elements, got {len(strings)}"
        )
    try:
        return hash_strings(hashed[0], *joined_strings(strings), hashed[1])
    except InputError as error:
        raise RequestError(f"input {name!r}: {error}") from error


def _unpacked(name: str, data: bytes, elements: int) -> list[bytes]:
    if elements * _LENGTH_BYTES > len(data):
        raise RequestError(
            f"input {name!r}: BYTES of {counted(elements, 'element')} take "
            f"{elements * _LENGTH_BYTES} bytes at least, got {len(data)}"
        )
    strings: list[bytes] = []
    at = 0
    while at < len(data):
        first = at + _LENGTH_BYTES
        size = int.from_bytes(data[at:first], "little")
        if first > len(data) or size > len(data) - first:
            raise RequestError(
                f"input {name!r}: element {len(strings)} is cut: "
                f"{counted(max(0, len(data) - first), 'byte')} left of {size}"
            )
        at = first + size
        strings.append(data[first:at])
    return strings
