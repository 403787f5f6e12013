"""Hashes that make 64-bit ids of strings, and rows of ids.

- `xxh3_64`: XXH3 of 64 bits with a seed of 64 bits (https://github.com/Cyan4973/xxHash).
- `murmur3_x64_128`: the first 64 bits of MurmurHash3_x64_128 with a seed of 32 bits, little-endian
  (Appleby 2011).
- `murmur_hash3_2x64`: FBGEMM's MurmurHash3 of two words, its halves joined by exclusive or
  (fbgemm_gpu, common_utils.cuh); TorchRec's MPZCH modules use it with y and seed 0.

Of an id, `xxh3_64` hashes its 8 bytes, little-endian, and `identity` is the id itself.
"""

import ctypes
from collections.abc import Sequence
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from kernels.errors import InputError
from kernels.native_library import load_library


class StringHash(StrEnum):
    """A hash of strings."""

    XXH3_64 = "xxh3_64"
    MURMUR3_X64_128 = "murmur3_x64_128"

    @property
    def seed_bits(self) -> int:
        """A seed is an unsigned number of so many bits."""
        return 64 if self is StringHash.XXH3_64 else 32

    @property
    def number(self) -> int:
        """`StringHash` of kernels/native/id_hash.h."""
        return 0 if self is StringHash.XXH3_64 else 1


class IdHash(StrEnum):
    """A hash of ids."""

    IDENTITY = "identity"
    MURMUR_HASH3_2X64 = "murmur_hash3_2x64"
    XXH3_64 = "xxh3_64"

    @property
    def number(self) -> int:
        """`IdHash` of kernels/native/id_hash.h."""
        return list(IdHash).index(self)


def _load() -> ctypes.CDLL | None:
    library = load_library("kernels")
    if library is not None:
        library.sharded_infer_hash_strings.restype = None
        library.sharded_infer_hash_strings.argtypes = (
            *(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint64),
            ctypes.c_void_p,
        )
        library.sharded_infer_hash_ids.restype = None
        library.sharded_infer_hash_ids.argtypes = (
            *(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint64, ctypes.c_void_p),
        )
        library.sharded_infer_murmur_hash3_2x64.restype = None
        library.sharded_infer_murmur_hash3_2x64.argtypes = (
            *(ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p),
        )
    return library


_LIBRARY = _load()


def hash_strings(
    name: StringHash, data: NDArray[np.uint8], offsets: NDArray[np.int64], seed: int = 0
) -> NDArray[np.int64]:
    """The hash of each string, its 64 bits as a signed number.

    Args:
        data: uint8 `[bytes]`, the strings one after another.
        offsets: int64 `[N + 1]`, where each string begins, and the end of the last.

    Returns:
        int64 `[N]`.

    Raises:
        InputError: the seed has more bits than the hash takes, the offsets fall or leave the data,
            an array has another dtype or shape, or nothing was compiled.
    """
    _check_seed(name.value, seed, name.seed_bits)
    if data.dtype != np.uint8 or data.ndim != 1:
        raise InputError(f"strings: expected uint8 [bytes], got {data.dtype} {list(data.shape)}")
    if offsets.dtype != np.int64 or offsets.ndim != 1 or not len(offsets):
        raise InputError(
            f"offsets: expected int64 [N + 1], got {offsets.dtype} {list(offsets.shape)}"
        )
    if offsets[0] < 0 or offsets[-1] > len(data) or (offsets[1:] < offsets[:-1]).any():
        raise InputError(f"offsets: expected rising numbers from 0 to {len(data)} at most")
    if _LIBRARY is None:
        raise InputError(
            f"{name}: the package was built without a compiler: hash the strings before"
        )
    data, offsets = np.ascontiguousarray(data), np.ascontiguousarray(offsets)
    out = np.empty(len(offsets) - 1, np.int64)
    _LIBRARY.sharded_infer_hash_strings(
        *(name.number, data.ctypes.data, offsets.ctypes.data, len(out), seed, out.ctypes.data)
    )
    return out


def joined_strings(strings: Sequence[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Strings as `hash_strings` takes them: their bytes, and the offsets."""
    offsets = np.zeros(len(strings) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, strings), np.int64, len(strings)), out=offsets[1:])
    return np.frombuffer(b"".join(strings), np.uint8), offsets


def hash_ids(name: IdHash, ids: NDArray[np.int64], seed: int = 0) -> NDArray[np.uint64]:
    """The hash of each id.

    Args:
        ids: int64 `[N]`.
        seed: of no use to `identity`.

    Returns:
        uint64 `[N]`.

    Raises:
        InputError: ids of another dtype or shape; a seed that is no unsigned word.
    """
    _check_ids(ids)
    _check_seed(name.value, seed, 64)
    if _LIBRARY is None:
        words = ids.view(np.uint64)
        if name is IdHash.IDENTITY:
            return words.copy()
        if name is IdHash.MURMUR_HASH3_2X64:
            return _murmur_hash3_2x64(words, 0, seed)
        return _xxh3_64(words, seed)
    ids = np.ascontiguousarray(ids)
    out = np.empty(len(ids), np.uint64)
    _LIBRARY.sharded_infer_hash_ids(
        *(name.number, ids.ctypes.data, len(ids), seed, out.ctypes.data)
    )
    return out


def murmur_hash3_2x64(ids: NDArray[np.int64], y: int = 0, seed: int = 0) -> NDArray[np.uint64]:
    """The hash of each id and of the word y.

    Args:
        ids: int64 `[N]`.

    Returns:
        uint64 `[N]`.

    Raises:
        InputError: ids of another dtype or shape; y or a seed that is no unsigned word.
    """
    _check_ids(ids)
    _check_seed("y", y, 64)
    _check_seed("murmur_hash3_2x64", seed, 64)
    if _LIBRARY is None:
        return _murmur_hash3_2x64(ids.view(np.uint64), y, seed)
    ids = np.ascontiguousarray(ids)
    out = np.empty(len(ids), np.uint64)
    _LIBRARY.sharded_infer_murmur_hash3_2x64(ids.ctypes.data, len(ids), y, seed, out.ctypes.data)
    return out


def _check_ids(ids: NDArray[np.int64]) -> None:
    if ids.dtype != np.int64 or ids.ndim != 1:
        raise InputError(f"ids: expected int64 [N], got {ids.dtype} {list(ids.shape)}")


def _check_seed(name: str, seed: int, bits: int) -> None:
    if not 0 <= seed < 2**bits:
        raise InputError(f"{name}: expected an unsigned number of {bits} bits, got {seed}")


def _murmur_hash3_2x64(x: NDArray[np.uint64], y: int, seed: int) -> NDArray[np.uint64]:
    """The reference in NumPy, and what runs where nothing was compiled."""
    one, other, five = np.uint64(0x87C37B91114253D5), np.uint64(0x4CF5AD432745937F), np.uint64(5)
    words, start = np.full(len(x), y, np.uint64), np.full(len(x), seed, np.uint64)
    first = _rotated(start ^ _rotated(x * one, 31) * other, 27) + start
    first = first * five + np.uint64(0x52DCE729)
    second = _rotated(start ^ _rotated(words * other, 33) * one, 31) + first
    second = (second * five + np.uint64(0x38495AB5)) ^ np.uint64(16)
    first = (first ^ np.uint64(16)) + second
    second = _mixed(second + first)
    first = _mixed(first) + second
    return first ^ (second + first)


def _xxh3_64(words: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """The reference in NumPy of XXH3 over 8 bytes: XXH3_len_4to8_64b of xxhash.h."""
    low = (seed & 0xFFFFFFFF).to_bytes(4, "little")
    seed ^= int.from_bytes(low, "big") << 32
    # Bytes 8 to 24 of the default secret, as two words.
    flipped = ((0x1CAD21F72C81017C ^ 0xDB979083E96DD4DE) - seed) % 2**64
    factor, halves = np.uint64(0x9FB21C651E98DF25), _rotated(words, 32)
    hashes = halves ^ np.uint64(flipped)
    hashes ^= _rotated(hashes, 49) ^ _rotated(hashes, 24)
    hashes *= factor
    hashes ^= (hashes >> np.uint64(35)) + np.uint64(8)
    hashes *= factor
    return hashes ^ (hashes >> np.uint64(28))


def _rotated(words: NDArray[np.uint64], bits: int) -> NDArray[np.uint64]:
    return (words << np.uint64(bits)) | (words >> np.uint64(64 - bits))


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    words = (words ^ (words >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    words = (words ^ (words >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return words ^ (words >> np.uint64(33))
