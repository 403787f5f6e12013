"""Puts ids into the buckets of an index: each its own first, then those that found theirs full."""

import ctypes
from collections import deque

import numpy as np
from numpy.typing import NDArray

from kernels.errors import InternalError
from kernels.ids.id_index import IndexFields
from kernels.ids.index_layout import (
    MOST_STEPS,
    SLOTS,
    IndexLayout,
    filter_bits,
    hashes_of,
    homes_of,
)
from kernels.native_library import load_library

MOST_PENDING = SLOTS * (MOST_STEPS + 1)


class PendingIds(ctypes.Structure):
    """`PendingIds` of kernels/native/id_index.h."""

    _fields_ = (
        ("count", ctypes.c_int64),
        ("keys", ctypes.c_uint64 * MOST_PENDING),
        ("rows", ctypes.c_uint32 * MOST_PENDING),
    )


def _load() -> ctypes.CDLL | None:
    library = load_library("kernels")
    if library is not None:
        library.sharded_infer_place_ids.argtypes = (
            *(ctypes.POINTER(IndexFields), ctypes.c_uint64, ctypes.c_int64),
            *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64),
            *(ctypes.POINTER(PendingIds), ctypes.c_void_p),
        )
    return library


_LIBRARY = _load()


def place_ids(
    buckets: NDArray[np.void],
    layout: IndexLayout,
    first: int,
    keys: NDArray[np.uint64],
    rows: NDArray[np.uint32],
    pending: PendingIds,
) -> None:
    """Fills buckets from the first on.

    Args:
        buckets: of dtype `BUCKET`, zeros.
        keys: in the order of their hashes, at home in these buckets.
        rows: of the keys.
        pending: keys that found the buckets before full; becomes those of these.

    Raises:
        InternalError: a key would lie more than `MOST_STEPS` behind its home.
    """
    if _LIBRARY is None:
        _place_in_python(buckets, layout, first, keys, rows, pending)
        return
    fields = IndexFields(None, layout.home_buckets, layout.table_rows, layout.seed)
    if _LIBRARY.sharded_infer_place_ids(
        *(fields, first, len(buckets), keys.ctypes.data, rows.ctypes.data, len(keys), pending),
        buckets.ctypes.data,
    ):
        raise InternalError(f"id index: ids of buckets from {first} on lie too far from home")


def _place_in_python(
    buckets: NDArray[np.void],
    layout: IndexLayout,
    first: int,
    keys: NDArray[np.uint64],
    rows: NDArray[np.uint32],
    pending: PendingIds,
) -> None:
    """As `place_ids` of kernels/native/id_index.cpp: the reference, where nothing was compiled."""
    hashes = hashes_of(keys, layout.seed)
    bits = filter_bits(hashes)
    places = homes_of(hashes, layout.home_buckets) - first
    ends = np.searchsorted(places, np.arange(len(buckets)), "right").tolist()
    held = np.array(pending.keys[: pending.count], np.uint64)
    waiting = deque(
        zip(
            held.tolist(),
            pending.rows[: pending.count],
            filter_bits(hashes_of(held, layout.seed)).tolist(),
            strict=True,
        )
    )
    start = 0
    for bucket, end in zip(buckets, ends, strict=True):
        own = min(end - start, SLOTS)
        put = [(keys[at], rows[at]) for at in range(start, start + own)]
        put += [waiting.popleft()[:2] for _ in range(min(SLOTS - own, len(waiting)))]
        waiting.extend(
            (int(keys[at]), int(rows[at]), int(bits[at])) for at in range(start + own, end)
        )
        start, last = end, len(put)
        for slot, (key, row) in enumerate(put):
            bucket["keys"][slot], bucket["rows"][slot] = key, row
        for _, _, bit in waiting:
            last |= bit
        bucket["last"] = last
    pending.count = len(waiting)
    for at, (key, row, _) in enumerate(waiting):
        pending.keys[at], pending.rows[at] = key, row
