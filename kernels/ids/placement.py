"""Placement of ids in an index's buckets: each one's own first, then those whose home was full."""

import ctypes

import numpy as np
from numpy.typing import NDArray

from kernels.errors import InternalError
from kernels.ids.id_index import IndexFields
from kernels.ids.index_layout import (
    MOST_STEPS,
    SLOTS,
    IndexLayout,
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


def _load() -> ctypes.CDLL:
    library = load_library("kernels")
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
        keys: in the order of their hashes, with homes in these buckets.
        rows: of the keys.
        pending: keys from full earlier buckets; replaced by those of these.

    Raises:
        InternalError: a key would be more than `MOST_STEPS` behind its home.
    """
    fields = IndexFields(None, layout.home_buckets, layout.table_rows, layout.seed)
    if _LIBRARY.sharded_infer_place_ids(
        *(fields, first, len(buckets), keys.ctypes.data, rows.ctypes.data, len(keys), pending),
        buckets.ctypes.data,
    ):
        raise InternalError(f"id index: ids of buckets from {first} on lie too far from home")
