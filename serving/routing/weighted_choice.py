"""Chooses one of several labels with weights for a request: a pure function.

    position = xxh3_64(key, seed of the model)      or by chance, without a key
    draw     = mixed(position ^ hash of the label)  for each label
    chosen   = the label with the least -log2((draw | 1) / 2^64) / weight

The seed of a model and the hash of a label are the first 8 bytes of SHA-256 of the name in UTF-8,
little-endian; `mixed` is the finalizer of MurmurHash3 (Appleby).

Rendezvous hashing with logarithms (Schindelhauer and Schomaker, "Weighted Distributed Hash Tables",
SPAA 2005): each label gets keys in proportion to its weight. A weight that grows only takes keys to
its label, one that shrinks only gives keys away, and without a label only its keys move.

Logarithms are whole numbers of 2^-32, so all processes on all machines choose the same. Compiled
code does so too: native/call/choice.cpp.
"""

import hashlib
from collections.abc import Sequence

from kernels.ids.id_hash import StringHash, hash_strings, joined_strings

_WORD = 2**64 - 1
_FRACTION_BITS = 32


def name_hash(name: str) -> int:
    """Seed of a model's keys, or hash of a label; 64 bits."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")


def key_position(key: bytes, seed: int) -> int:
    """Position of a routing key by a model's `name_hash`; 64 bits.

    Raises:
        InputError: the package was built without a compiler.
    """
    return int(hash_strings(StringHash.XXH3_64, *joined_strings([key]), seed)[0]) & _WORD


def choose(position: int, shares: Sequence[tuple[int, int]]) -> int:
    """Index of the share of a position, by hash and weight of each label; of equals the first."""
    best, least = 0, 0
    for at, (label_hash, weight) in enumerate(shares):
        cost = _negative_log2(mixed(position ^ label_hash))
        # cost / weight < least / weight of the best, in whole numbers.
        if at == 0 or cost * shares[best][1] < least * weight:
            best, least = at, cost
    return best


def mixed(word: int) -> int:
    """Finalizer of MurmurHash3, on 64 bits."""
    word = (word ^ word >> 33) * 0xFF51AFD7ED558CCD & _WORD
    word = (word ^ word >> 33) * 0xC4CEB9FE1A85EC53 & _WORD
    return word ^ word >> 33


def _negative_log2(word: int) -> int:
    """-log2((word | 1) / 2^64) in 2^-32, above 0: each squaring gives one more bit."""
    word |= 1
    log = word.bit_length() - 1
    word <<= 63 - log
    for _ in range(_FRACTION_BITS):
        word = word * word >> 64
        top = word >> 63
        log = log << 1 | top
        word <<= 1 - top
    return (64 << _FRACTION_BITS) - log
