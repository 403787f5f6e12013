"""native/abi/shares.h; written by native/abi/generate.py."""

import ctypes

from kernels.native_library import check_layout, function_of
from serving.abi import LIBRARY


class Watch(ctypes.Structure):
    _fields_ = (
        ("lost", ctypes.c_void_p),
        ("place", ctypes.c_void_p),
        ("byte", ctypes.c_int32),
    )


class Piece(ctypes.Structure):
    _fields_ = (
        ("rows", ctypes.c_void_p),
        ("row_bytes", ctypes.c_int64),
        ("row_count", ctypes.c_int64),
        ("first_row", ctypes.c_int64),
        ("columns", ctypes.c_int64),
        ("format", ctypes.c_int32),
        ("mean", ctypes.c_int32),
        ("overlay", ctypes.c_void_p),
        ("watches", ctypes.c_void_p),
        ("watch_count", ctypes.c_int64),
        ("id_map", ctypes.c_void_p),
    )


class ShareSettings(ctypes.Structure):
    _fields_ = (
        ("model", ctypes.c_char_p),
        ("version", ctypes.c_uint64),
        ("manifest", ctypes.c_uint64),
        ("share", ctypes.c_uint64),
        ("pieces", ctypes.c_void_p),
        ("piece_count", ctypes.c_int64),
        ("most_entries", ctypes.c_int64),
        ("most_answer_bytes", ctypes.c_int64),
        ("run", ctypes.c_void_p),
        ("instruction_set", ctypes.c_int32),
    )


check_layout(LIBRARY, "shares", 0xB25BDD1C, {
    Watch: 0x844A95C9,
    Piece: 0x7CE3778E,
    ShareSettings: 0xAAF91EE0,
})
shares_create = function_of(
    LIBRARY,
    "sharded_infer_shares_create",
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int64,
)
shares_add = function_of(
    LIBRARY,
    "sharded_infer_shares_add",
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.POINTER(ShareSettings),
)
shares_drop = function_of(
    LIBRARY,
    "sharded_infer_shares_drop",
    None,
    ctypes.c_void_p,
    ctypes.c_void_p,
)
shares_counted = function_of(
    LIBRARY,
    "sharded_infer_shares_counted",
    None,
    ctypes.c_void_p,
    ctypes.c_void_p,
)
shares_fetch = function_of(
    LIBRARY,
    "sharded_infer_shares_fetch",
    ctypes.c_int32,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int32,
    ctypes.c_void_p,
    ctypes.c_int32,
    ctypes.c_int32,
)
