"""native/abi/tiers.h; written by native/abi/generate.py."""

import ctypes
from enum import IntEnum

from kernels.abi import LIBRARY
from kernels.abi.lookup import RowOverlay
from kernels.native_library import check_layout, function_of


class Missing(IntEnum):
    THERE = 0
    LATE = 1
    REFUSED = 2
    FAILED = 3
    TRUNCATED = 4


SLOT_BYTES = 28
QUEUE_DEPTH = 128
LATENCIES = 16
FIRST_LATENCY = 5e-05


class TierSettings(ctypes.Structure):
    _fields_ = (
        ("descriptor", ctypes.c_int32),
        ("is_direct", ctypes.c_int32),
        ("offset", ctypes.c_int64),
        ("row_bytes", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("hot_rows", ctypes.c_int64),
        ("cached_rows", ctypes.c_int64),
    )


class TierCounts(ctypes.Structure):
    _fields_ = (
        ("hot", ctypes.c_int64),
        ("cached", ctypes.c_int64),
        ("missed", ctypes.c_int64),
        ("unplaced", ctypes.c_int64),
        ("reads", ctypes.c_int64),
        ("read_bytes", ctypes.c_int64),
        ("failed_reads", ctypes.c_int64),
        ("used_slots", ctypes.c_int64),
        ("nanoseconds", ctypes.c_int64),
        ("latencies", ctypes.c_int64 * 17),
    )


class MissingRow(ctypes.Structure):
    _fields_ = (
        ("why", ctypes.c_int32),
        ("error", ctypes.c_int32),
        ("tier", ctypes.c_int64),
        ("row", ctypes.c_int64),
        ("count", ctypes.c_int64),
    )


check_layout(LIBRARY, "tiers", 0x473CBA86, {
    TierSettings: 0xC188E754,
    TierCounts: 0x23608359,
    MissingRow: 0xA02BB2EC,
})
tier_open = function_of(
    LIBRARY,
    "sharded_infer_tier_open",
    ctypes.c_void_p,
    ctypes.POINTER(TierSettings),
)
tier_close = function_of(LIBRARY, "sharded_infer_tier_close", None, ctypes.c_void_p)
tier_load = function_of(
    LIBRARY,
    "sharded_infer_tier_load",
    ctypes.c_int32,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_int64,
)
tier_counts = function_of(
    LIBRARY,
    "sharded_infer_tier_counts",
    None,
    ctypes.c_void_p,
    ctypes.POINTER(TierCounts),
)
tier_queued = function_of(LIBRARY, "sharded_infer_tier_queued", ctypes.c_int64)
tier_reader = function_of(LIBRARY, "sharded_infer_tier_reader", ctypes.c_char_p)
tier_lookup = function_of(LIBRARY, "sharded_infer_tier_lookup", ctypes.c_void_p)
tier_find = function_of(
    LIBRARY,
    "sharded_infer_tier_find",
    None,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.POINTER(RowOverlay),
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_void_p,
)
tier_submit = function_of(LIBRARY, "sharded_infer_tier_submit", None, ctypes.c_void_p)
tier_wait = function_of(
    LIBRARY,
    "sharded_infer_tier_wait",
    None,
    ctypes.c_void_p,
    ctypes.c_double,
    ctypes.POINTER(MissingRow),
)
tier_release = function_of(LIBRARY, "sharded_infer_tier_release", None, ctypes.c_void_p)
