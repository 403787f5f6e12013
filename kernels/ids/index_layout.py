"""Bytes of an index of raw ids: a header, and buckets of one cache line.

    header, 64 bytes: magic, version, seed's low half, home buckets, ids, rows of the table, seed's
        high half, zeros
    bucket, 64 bytes: 5 keys of 8 bytes, 5 rows of 4 bytes, 1 byte: slots used, 3 bytes: the filter

Numbers are little-endian. `native/base/id_index.h` specifies the search.
"""

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernels.abi.ids import BUCKET_BYTES, MOST_STEPS, SLOTS
from kernels.errors import InputError

HEADER_BYTES = 64
MOST_HOMES = MOST_ROWS = 2**32
IDS_OF_A_HOME = 4  # on average: load 0.8, 16 bytes an id
_MAGIC = b"id-index"
_VERSION = 1
_HEADER = struct.Struct("<8sIIQQQI20s")
BUCKET = np.dtype([("keys", "<u8", SLOTS), ("rows", "<u4", SLOTS), ("last", "<u4")])
_STEP, _FIRST, _SECOND = (
    np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


@dataclass(frozen=True, slots=True)
class IndexLayout:
    """Contents of the header: number of ids, bound of the rows, home buckets and seed."""

    count: int
    table_rows: int
    home_buckets: int
    seed: int = 0

    @property
    def buckets(self) -> int:
        """All buckets, including those behind the last home."""
        return self.home_buckets + MOST_STEPS

    @property
    def size(self) -> int:
        """Bytes of the index."""
        return HEADER_BYTES + self.buckets * BUCKET_BYTES

    def header(self) -> bytes:
        """The header's bytes."""
        high, low = divmod(self.seed, 2**32)
        numbers = low, self.home_buckets, self.count, self.table_rows, high
        return _HEADER.pack(_MAGIC, _VERSION, *numbers, b"")


def read_header(memory: NDArray[np.uint8], size: int | None = None) -> IndexLayout:
    """Reads the header of an index of `size` bytes (None: all of them) from its first bytes.

    Raises InputError if it is no index, of another version, or its length contradicts its header.
    """
    if len(memory) < HEADER_BYTES:
        raise InputError(
            f"id index: expected a header of {HEADER_BYTES} bytes, got {len(memory)} bytes"
        )
    fields = _HEADER.unpack(memory[:HEADER_BYTES].tobytes())
    magic, version, low, home_buckets, count, table_rows, high, zeros = fields
    if magic != _MAGIC:
        raise InputError(f"id index: expected the first bytes {_MAGIC!r}, got {magic!r}")
    if version != _VERSION:
        raise InputError(f"id index: expected version {_VERSION}, got {version}")
    if any(zeros):
        raise InputError("id index: expected zeros at the end of the header")
    for name, number, least, most in (
        ("home buckets", home_buckets, 1, MOST_HOMES),
        ("rows of the table", table_rows, 0, MOST_ROWS),
        ("ids", count, 0, home_buckets * SLOTS),
    ):
        if not least <= number <= most:
            raise InputError(f"id index: {name}: expected {least} to {most}, got {number}")
    layout = IndexLayout(count, table_rows, home_buckets, high * 2**32 + low)
    size = len(memory) if size is None else size
    if size != layout.size:
        raise InputError(
            f"id index: expected {layout.size} bytes for {home_buckets} home buckets, got {size}"
        )
    return layout


def hashes_of(keys: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """The hash of each key: splitmix64's finalizer, a bijection."""
    with np.errstate(over="ignore"):
        hashes = keys + np.uint64((seed + 1) % 2**64) * _STEP
        hashes = (hashes ^ (hashes >> np.uint64(30))) * _FIRST
        hashes = (hashes ^ (hashes >> np.uint64(27))) * _SECOND
    return hashes ^ (hashes >> np.uint64(31))


def homes_of(hashes: NDArray[np.uint64], home_buckets: int) -> NDArray[np.int64]:
    """Home bucket of each hash; it rises with the hash."""
    shift = np.uint64(32)
    return (((hashes >> shift) * np.uint64(home_buckets)) >> shift).astype(np.int64)


def filter_bits(hashes: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """The bit of each hash in a filter."""
    places = ((hashes & np.uint64(255)) * np.uint64(24)) >> np.uint64(8)
    return np.uint32(256) << places.astype(np.uint32)
