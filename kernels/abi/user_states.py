"""native/abi/user_states.h; written by native/abi/generate.py."""

import ctypes

from kernels.abi import KEEPING_GIL, LIBRARY
from kernels.native_library import check_layout, function_of


NAME_WORDS = 2
BLOCK_POSITIONS = 16


class StateColumn(ctypes.Structure):
    _fields_ = (
        ("values", ctypes.c_void_p),
        ("width", ctypes.c_int64),
    )


class StateOwner(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_uint64 * 2),
        ("evictions", ctypes.c_int64),
    )


class PrefixSearch(ctypes.Structure):
    _fields_ = (
        ("table", ctypes.c_void_p),
        ("owner", ctypes.c_void_p),
        ("columns", ctypes.c_void_p),
        ("column_count", ctypes.c_int64),
        ("positions", ctypes.c_int64),
        ("names", ctypes.c_void_p),
    )


class StateCounts(ctypes.Structure):
    _fields_ = (
        ("states", ctypes.c_int64),
        ("bytes", ctypes.c_int64),
    )


check_layout(LIBRARY, "user_states", 0xE9FB6F1D, {
    StateColumn: 0x239C29D4,
    StateOwner: 0xBDAB3719,
    PrefixSearch: 0xAA5C3FA9,
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
    ctypes.c_int64,
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
