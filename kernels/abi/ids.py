"""native/abi/ids.h; written by native/abi/generate.py."""

import ctypes
from enum import IntEnum

from kernels.abi import LIBRARY
from kernels.native_library import check_layout, function_of


class IdHash(IntEnum):
    IDENTITY = 0
    MURMUR_HASH3_2X64 = 1
    XXH3_64 = 2


class StringHash(IntEnum):
    XXH3_64 = 0
    MURMUR3_X64_128 = 1


SLOTS = 5
BUCKET_BYTES = 64
MOST_STEPS = 255
MOST_PENDING = 1280


class IdIndex(ctypes.Structure):
    _fields_ = (
        ("buckets", ctypes.c_void_p),
        ("home_buckets", ctypes.c_uint64),
        ("table_rows", ctypes.c_uint64),
        ("seed", ctypes.c_uint64),
    )


class PendingIds(ctypes.Structure):
    _fields_ = (
        ("count", ctypes.c_int64),
        ("keys", ctypes.c_uint64 * 1280),
        ("rows", ctypes.c_uint32 * 1280),
    )


check_layout(LIBRARY, "ids", 0x8D51E930, {
    IdIndex: 0xBB1139DA,
    PendingIds: 0x176B885E,
})
rows_of_ids = function_of(
    LIBRARY,
    "sharded_infer_rows_of_ids",
    None,
    ctypes.POINTER(IdIndex),
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_void_p,
)
place_ids = function_of(
    LIBRARY,
    "sharded_infer_place_ids",
    ctypes.c_int32,
    ctypes.POINTER(IdIndex),
    ctypes.c_uint64,
    ctypes.c_int64,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.POINTER(PendingIds),
    ctypes.c_void_p,
)
placed_rows = function_of(
    LIBRARY,
    "sharded_infer_placed_rows",
    ctypes.c_int32,
    ctypes.c_void_p,
    ctypes.c_uint64,
    ctypes.c_uint64,
    ctypes.c_void_p,
    ctypes.c_int64,
)
hash_strings = function_of(
    LIBRARY,
    "sharded_infer_hash_strings",
    None,
    ctypes.c_int32,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_uint64,
    ctypes.c_void_p,
)
join_strings = function_of(
    LIBRARY,
    "sharded_infer_join_strings",
    ctypes.c_int64,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_int64,
    ctypes.c_void_p,
    ctypes.c_void_p,
)
hash_ids = function_of(
    LIBRARY,
    "sharded_infer_hash_ids",
    None,
    ctypes.c_int32,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_uint64,
    ctypes.c_void_p,
)
murmur_hash3_2x64 = function_of(
    LIBRARY,
    "sharded_infer_murmur_hash3_2x64",
    None,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_uint64,
    ctypes.c_uint64,
    ctypes.c_void_p,
)
