"""Strings on the wire, hashed to raw ids: BYTES tensors, and features of Predict calls.

each element of a tensor: its length in 4 bytes, little-endian, and its bytes
of a feature: all bytes, and all lengths
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from kernels.ids.id_hash import StringHash, hash_strings, joined_strings
from kernels.wording import counted
from sharded_infer.errors import InputError, RequestError

BYTES = "BYTES"
# Configuration parameters, as prefixes of an input's name: datatypes allowed for its raw ids; the
# hash function of its strings, and the seed.
RAW_IDS, STRING_HASH, STRING_HASH_SEED = "raw_ids.", "string_hash.", "string_hash_seed."
_LENGTH_BYTES = 4


def packed_strings(strings: Iterable[bytes]) -> bytes:
    """Elements of a tensor as sent."""
    return b"".join(len(one).to_bytes(_LENGTH_BYTES, "little") + one for one in strings)


def hashed_strings(
    name: str,
    shape: Iterable[int],
    data: bytes | memoryview | Iterable[object],
    hashed: tuple[StringHash, int],
) -> NDArray[np.int64]:
    """Raw id of each element of an input's tensor, int64 `[N]`, hashed by function and seed.

    Args:
        data: the elements as sent, or as bytes objects.

    Raises:
        RequestError: the number of elements does not match the shape, or one is truncated.
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
    return _hashed(f"input {name!r}", *joined_strings(strings), hashed)


def hashed_parts(
    name: str, data: bytes, lengths: Sequence[int], hashed: tuple[StringHash, int]
) -> NDArray[np.int64]:
    """Raw id of each part of a feature's `data`, int64 `[N]`, hashed by function and seed.

    Args:
        lengths: bytes of each part.

    Raises:
        RequestError: the lengths do not sum to the number of bytes.
    """
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(np.array(lengths, np.int64), out=offsets[1:])
    if offsets[-1] != len(data):
        raise RequestError(
            f"feature {name!r}: string_lengths sum to {offsets[-1]}, but strings have "
            f"{counted(len(data), 'byte')}"
        )
    return _hashed(f"feature {name!r}", np.frombuffer(data, np.uint8), offsets, hashed)


def _hashed(
    what: str,
    data: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    hashed: tuple[StringHash, int],
) -> NDArray[np.int64]:
    try:
        return hash_strings(hashed[0], data, offsets, hashed[1])
    except InputError as error:
        raise RequestError(f"{what}: {error}") from error


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
