"""native/abi/user_states.h; written by native/abi/generate.py."""

import ctypes
from enum import IntEnum

from kernels.abi import KEEPING_GIL, LIBRARY
from kernels.native_library import check_layout, function_of


class Keeping(IntEnum):
    NOTHING = 0
    WORTHWHILE = 1
    ALL = 2


NAME_WORDS = 2
BLOCK_POSITIONS = 16


class StateColumn(ctypes.Structure):
    _fields_ = (
        ("values", ctypes.c_void_p),
        ("lengths", ctypes.c_void_p),
        ("width", ctypes.c_int64),
    )


class StateOwner(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_uint64 * 2),
        ("evictions", ctypes.c_int64),
    )


class KnownBlocks(ctypes.Structure):
    _fields_ = (
        ("table", ctypes.c_void_p),
        ("owner", ctypes.c_void_p),
        ("names", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("keeping", ctypes.c_int32),
        ("is_bfloat", ctypes.c_int32),
    )


class PrefixSearch(ctypes.Structure):
    _fields_ = (
        ("table", ctypes.c_void_p),
        ("owner", ctypes.c_void_p),
        ("columns", ctypes.c_void_p),
        ("column_count", ctypes.c_int64),
        ("firsts", ctypes.c_void_p),
        ("positions", ctypes.c_void_p),
        ("histories", ctypes.c_int64),
        ("names", ctypes.c_void_p),
        ("blocks", ctypes.c_void_p),
        ("behind", ctypes.c_void_p),
        ("is_bfloat", ctypes.c_int32),
        ("hits", ctypes.c_int64),
        ("known", ctypes.c_int64),
        ("computed", ctypes.c_int64),
    )


class StateCounts(ctypes.Structure):
    _fields_ = (
        ("states", ctypes.c_int64),
        ("bytes", ctypes.c_int64),
    )


check_layout(LIBRARY, "user_states", 0xACDCDB58, {
    StateColumn: 0xF7CBC4CE,
    StateOwner: 0xBDAB3719,
    KnownBlocks: 0x1EDE27A6,
    PrefixSearch: 0x46F1BD69,
    StateCounts: 0x91B50246,
})
states_create = function_of(
    LIBRARY,
    "sharded_infer_states_create",
    ctypes.c_int32,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_void_p,
)
states_find = function_of(
    KEEPING_GIL,
    "sharded_infer_states_find",
    None,
    ctypes.POINTER(PrefixSearch),
)
states_read = function_of(
    KEEPING_GIL,
    "sharded_infer_states_read",
    ctypes.c_int64,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int64,
)
states_write = function_of(
    KEEPING_GIL,
    "sharded_infer_states_write",
    None,
    ctypes.c_void_p,
    ctypes.POINTER(StateOwner),
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_double,
    ctypes.c_int32,
)
states_count = function_of(
    LIBRARY,
    "sharded_infer_states_count",
    None,
    ctypes.c_void_p,
    ctypes.POINTER(StateOwner),
    ctypes.POINTER(StateCounts),
)
