"""Strings on the wire, hashed to raw ids: BYTES tensors, and features of Predict calls.

each element of a tensor: its length in 4 bytes, little-endian, and its bytes
of a feature: all bytes, and all lengths
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from kernels.ids.id_hash import StringHash, hash_strings, joined_strings, unpacked_strings
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
    what = f"input {name!r}"
    if isinstance(data, (bytes, memoryview)):
        return _hashed(what, *_unpacked(what, shape, bytes(data), elements), hashed)
    strings = [one for one in data if isinstance(one, bytes)]
    if len(strings) != elements:
        raise RequestError(f"{what}: {_asked(shape, elements)}, got {len(strings)}")
    return _hashed(what, *joined_strings(strings), hashed)


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


def _unpacked(
    what: str, shape: Iterable[int], data: bytes, elements: int
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    if elements * _LENGTH_BYTES > len(data):
        raise RequestError(
            f"{what}: BYTES of {counted(elements, 'element')} take "
            f"{elements * _LENGTH_BYTES} bytes at least, got {len(data)}"
        )
    strings, offsets = unpacked_strings(data, elements)
    whole = len(offsets) - 1
    at = _LENGTH_BYTES * whole + int(offsets[-1])
    left = len(data) - at
    if whole == elements:
        if left:
            raise RequestError(
                f"{what}: {_asked(shape, elements)}, followed by {counted(left, 'byte')}"
            )
        return strings, offsets
    if not left:
        raise RequestError(f"{what}: {_asked(shape, elements)}, got {whole}")
    length = data[at : at + _LENGTH_BYTES]
    if left < _LENGTH_BYTES:
        raise RequestError(
            f"{what}: element {whole} is cut: its length has {_LENGTH_BYTES} bytes, {left} are left"
        )
    raise RequestError(
        f"{what}: element {whole} is cut: {counted(left - _LENGTH_BYTES, 'byte')} left of "
        f"{int.from_bytes(length, 'little')}"
    )


def _asked(shape: Iterable[int], elements: int) -> str:
    return f"BYTES {list(shape)} has {counted(elements, 'element')}"
