"""Hashes that make 64-bit ids of strings, and rows of ids.

- `xxh3_64`: XXH3 of 64 bits with a seed of 64 bits (https://github.com/Cyan4973/xxHash).
- `murmur3_x64_128`: the first 64 bits of MurmurHash3_x64_128 with a seed of 32 bits, little-endian
  (Appleby 2011).
- `murmur_hash3_2x64`: FBGEMM's MurmurHash3 of two words, its halves joined by exclusive or
  (fbgemm_gpu, common_utils.cuh); TorchRec's MPZCH modules use it with y and seed 0.

Of an id, `xxh3_64` hashes its 8 bytes, little-endian, and `identity` is the id itself.
"""

from collections.abc import Sequence
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from kernels.abi import ids as abi
from kernels.errors import InputError


class StringHash(StrEnum):
    """A hash of strings."""

    XXH3_64 = "xxh3_64"
    MURMUR3_X64_128 = "murmur3_x64_128"

    @property
    def seed_bits(self) -> int:
        """Bits of a seed, an unsigned number."""
        return 64 if self is StringHash.XXH3_64 else 32

    @property
    def number(self) -> int:
        """Its number in compiled code."""
        return abi.StringHash[self.name]


class IdHash(StrEnum):
    """A hash of ids."""

    IDENTITY = "identity"
    MURMUR_HASH3_2X64 = "murmur_hash3_2x64"
    XXH3_64 = "xxh3_64"

    @property
    def number(self) -> int:
        """Its number in compiled code."""
        return abi.IdHash[self.name]


def hash_strings(
    name: StringHash, data: NDArray[np.uint8], offsets: NDArray[np.int64], seed: int = 0
) -> NDArray[np.int64]:
    """Hash of each string, int64 `[N]`: its 64 bits as a signed number.

    Args:
        data: uint8 `[bytes]`, the strings one after another.
        offsets: int64 `[N + 1]`, start of each string, and the end of the last.
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
    data, offsets = np.ascontiguousarray(data), np.ascontiguousarray(offsets)
    out = np.empty(len(offsets) - 1, np.int64)
    abi.hash_strings(
        *(name.number, data.ctypes.data, offsets.ctypes.data, len(out), seed, out.ctypes.data)
    )
    return out


def joined_strings(strings: Sequence[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Arguments of `hash_strings`: the strings' bytes, and their offsets."""
    offsets = np.zeros(len(strings) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, strings), np.int64, len(strings)), out=offsets[1:])
    return np.frombuffer(b"".join(strings), np.uint8), offsets


def unpacked_strings(data: bytes, count: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Strings after their lengths of 4 bytes, little-endian, as `hash_strings` takes them.

    Of the first `count` strings; of fewer if the data ends before.
    """
    joined, offsets = np.empty(len(data), np.uint8), np.empty(count + 1, np.int64)
    whole = abi.join_strings(data, len(data), count, joined.ctypes.data, offsets.ctypes.data)
    return joined, offsets[: whole + 1]


def hash_ids(name: IdHash, ids: NDArray[np.int64], seed: int = 0) -> NDArray[np.uint64]:
    """Hash of each int64 `[N]` id, uint64 `[N]`; `identity` ignores the seed."""
    _check_ids(ids)
    _check_seed(name.value, seed, 64)
    ids = np.ascontiguousarray(ids)
    out = np.empty(len(ids), np.uint64)
    abi.hash_ids(*(name.number, ids.ctypes.data, len(ids), seed, out.ctypes.data))
    return out


def murmur_hash3_2x64(ids: NDArray[np.int64], y: int = 0, seed: int = 0) -> NDArray[np.uint64]:
    """Hash of each int64 `[N]` id and of the word y, uint64 `[N]`."""
    _check_ids(ids)
    _check_seed("y", y, 64)
    _check_seed("murmur_hash3_2x64", seed, 64)
    ids = np.ascontiguousarray(ids)
    out = np.empty(len(ids), np.uint64)
    abi.murmur_hash3_2x64(ids.ctypes.data, len(ids), y, seed, out.ctypes.data)
    return out


def _check_ids(ids: NDArray[np.int64]) -> None:
    if ids.dtype != np.int64 or ids.ndim != 1:
        raise InputError(f"ids: expected int64 [N], got {ids.dtype} {list(ids.shape)}")


def _check_seed(name: str, seed: int, bits: int) -> None:
    if not 0 <= seed < 2**bits:
        raise InputError(f"{name}: expected an unsigned number of {bits} bits, got {seed}")
