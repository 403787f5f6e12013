"""Hashes of ids and strings, beside FBGEMM's operators, the xxhash package and a plain murmur3."""

import numpy as np
import pytest
import torch
import xxhash
from fbgemm_gpu import sparse_ops  # noqa: F401 - registers FBGEMM's operators
from numpy.typing import NDArray

from kernels.errors import InputError
from kernels.ids.id_hash import (
    IdHash,
    StringHash,
    hash_ids,
    hash_strings,
    joined_strings,
    murmur_hash3_2x64,
)

WORD = 2**64 - 1
STRINGS = [np.random.default_rng(n).bytes(n) for n in (*range(300), 1023, 1024, 1025, 5000, 70_000)]


def many_ids() -> NDArray[np.int64]:
    edges = [0, 1, -1, 2**63 - 1, -(2**63)]
    drawn = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 10**6, endpoint=True)
    return np.concatenate([np.array(edges), drawn])


@pytest.mark.parametrize("slots", [65_537, 65_539, 65_543, 65_551])
def test_ids_have_the_hashes_of_torchrecs_modules(slots: int) -> None:
    """The sizes are primes with a product above 2^64, so they determine all 64 bits.

    An unknown id falls back to the slot of its hash.
    """
    ids = many_ids()
    found, _ = torch.ops.fbgemm.zero_collision_hash(
        input=torch.from_numpy(ids),
        identities=torch.full((slots, 1), -1),
        max_probe=1,
        circular_probe=True,
        readonly=True,
    )
    expected = (murmur_hash3_2x64(ids) % np.uint64(slots)).astype(np.int64)
    assert np.array_equal(found.numpy(), expected)


@pytest.mark.parametrize(("y", "seed"), [(0, 0), (7, 0), (0, 42), (2**31, 2**40)])
def test_other_words_and_seeds_have_the_hashes_of_fbgemms_operator(y: int, seed: int) -> None:
    ids = many_ids()[:400]
    hashes = murmur_hash3_2x64(ids, y, seed)
    # The operator hashes one id, and raises where its hash has the highest bit.
    small = np.flatnonzero(hashes < 2**63)
    assert len(small) > 100
    for at in small.tolist():
        one = torch.ops.fbgemm.murmur_hash3(torch.tensor([ids[at]]), y, seed)
        assert int(one) == hashes[at]


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32 + 5, 2**64 - 1])
def test_hashes_of_ids_are_those_of_their_bytes_and_words(seed: int) -> None:
    ids = many_ids()[:2000]
    assert np.array_equal(
        hash_ids(IdHash.MURMUR_HASH3_2X64, ids, seed), murmur_hash3_2x64(ids, 0, seed)
    )
    expected = [xxhash.xxh3_64_intdigest(one.tobytes(), seed) for one in ids.astype("<i8")]
    assert hash_ids(IdHash.XXH3_64, ids, seed).tolist() == expected
    assert np.array_equal(hash_ids(IdHash.IDENTITY, ids), ids.view(np.uint64))
    for name in IdHash:
        assert np.array_equal(hash_ids(name, ids[::3], seed), hash_ids(name, ids, seed)[::3])
        assert not len(hash_ids(name, ids[:0], seed))


@pytest.mark.parametrize("name", IdHash)
def test_ids_and_seeds_that_do_not_fit_are_refused(name: IdHash) -> None:
    with pytest.raises(InputError, match=r"ids: expected int64 \[N\], got int32 \[2\]"):
        hash_ids(name, np.zeros(2, np.int32))  # type: ignore[arg-type]
    for seed in (-1, 2**64):
        with pytest.raises(InputError, match=f"{name}: expected an unsigned number of 64 bits"):
            hash_ids(name, np.zeros(2, np.int64), seed)


def murmur3_x64_128(data: bytes, seed: int) -> int:
    """The first 64 bits of MurmurHash3_x64_128, byte by byte."""

    def rotated(word: int, bits: int) -> int:
        return (word << bits | word >> (64 - bits)) & WORD

    def mixed(word: int) -> int:
        for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
            word = (word ^ word >> 33) * factor & WORD
        return word ^ word >> 33

    one, other = 0x87C37B91114253D5, 0x4CF5AD432745937F
    first = second = seed
    blocks = len(data) // 16
    for block in range(blocks):
        low = int.from_bytes(data[16 * block : 16 * block + 8], "little")
        high = int.from_bytes(data[16 * block + 8 : 16 * block + 16], "little")
        first ^= rotated(low * one & WORD, 31) * other & WORD
        first = ((rotated(first, 27) + second) * 5 + 0x52DCE729) & WORD
        second ^= rotated(high * other & WORD, 33) * one & WORD
        second = ((rotated(second, 31) + first) * 5 + 0x38495AB5) & WORD
    tail = data[16 * blocks :]
    if len(tail) > 8:
        second ^= rotated(int.from_bytes(tail[8:], "little") * other & WORD, 33) * one & WORD
    if tail:
        first ^= rotated(int.from_bytes(tail[:8], "little") * one & WORD, 31) * other & WORD
    first ^= len(data)
    second ^= len(data)
    first = (first + second) & WORD
    second = (second + first) & WORD
    first, second = mixed(first), mixed(second)
    return (first + second) & WORD


def hashed(name: StringHash, strings: list[bytes], seed: int) -> list[int]:
    found = hash_strings(name, *joined_strings(strings), seed)
    assert found.dtype == np.int64
    return found.view(np.uint64).tolist()


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1, 2**64 - 1])
def test_xxh3_is_the_packages(seed: int) -> None:
    expected = [xxhash.xxh3_64_intdigest(string, seed) for string in STRINGS]
    assert hashed(StringHash.XXH3_64, STRINGS, seed) == expected


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1])
def test_murmur3_is_the_papers(seed: int) -> None:
    # mmh3's documentation has it.
    assert murmur3_x64_128(b"foo", 0) == -2129773440516405919 & WORD
    expected = [murmur3_x64_128(string, seed) for string in STRINGS]
    assert hashed(StringHash.MURMUR3_X64_128, STRINGS, seed) == expected


@pytest.mark.parametrize("name", StringHash)
def test_strings_may_lie_anywhere_in_the_data(name: StringHash) -> None:
    data, offsets = joined_strings([b"before", b"user-1", b"user-2", b"behind"])
    found = hash_strings(name, data, offsets[1:4])
    assert found.view(np.uint64).tolist() == hashed(name, [b"user-1", b"user-2"], 0)
    assert hashed(name, [], 0) == []


@pytest.mark.parametrize(
    ("data", "offsets", "words"),
    [
        *(
            (np.zeros(4, np.uint8), np.array(offsets), "rising numbers from 0 to 4 at most")
            for offsets in ([0, 5], [-1, 2], [0, 3, 2], [3, 4, 1])
        ),
        (np.zeros(4, np.int8), np.array([0, 1]), "strings: expected uint8"),
        (np.zeros(4, np.uint8), np.array([0, 1], np.int32), "offsets: expected int64"),
        (np.zeros(4, np.uint8), np.empty(0, np.int64), "offsets: expected int64"),
    ],
)
def test_arrays_that_are_no_strings_are_refused(
    data: NDArray[np.uint8], offsets: NDArray[np.int64], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        hash_strings(StringHash.XXH3_64, data, offsets)


@pytest.mark.parametrize(("name", "bits"), [("xxh3_64", 64), ("murmur3_x64_128", 32)])
def test_a_seed_of_more_bits_is_refused(name: str, bits: int) -> None:
    for seed in (-1, 2**bits):
        with pytest.raises(InputError, match=f"{name}: expected an unsigned number of {bits} bits"):
            hash_strings(StringHash(name), *joined_strings([b"a"]), seed)
