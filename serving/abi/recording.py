"""native/abi/recording.h; written by native/abi/generate.py."""

import ctypes

from kernels.native_library import check_layout, function_of
from serving.abi import KEEPING_GIL, LIBRARY


class RecordedLists(ctypes.Structure):
    _fields_ = (
        ("ends", ctypes.c_void_p),
        ("numbers", ctypes.c_void_p),
    )


class RecordedCalls(ctypes.Structure):
    _fields_ = (
        ("calls", ctypes.c_int64),
        ("unread", ctypes.c_int64),
        ("samples", ctypes.c_void_p),
        ("ids_outside", ctypes.c_void_p),
        ("has_defaults", ctypes.c_void_p),
        ("codes", ctypes.c_void_p),
        ("seconds", ctypes.c_void_p),
        ("ids", RecordedLists),
        ("lengths", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
        ("dense", ctypes.c_void_p),
        ("scores", ctypes.c_void_p),
    )


check_layout(LIBRARY, "recording", 0x4BE0570B, {
    RecordedLists: 0x1B2DAA3C,
    RecordedCalls: 0x2B7A5B2E,
})
recording_set = function_of(
    KEEPING_GIL,
    "sharded_infer_recording_set",
    None,
    ctypes.c_void_p,
    ctypes.c_uint64,
    ctypes.c_int64,
)
recording_dropped = function_of(
    KEEPING_GIL,
    "sharded_infer_recording_dropped",
    ctypes.c_int64,
    ctypes.c_void_p,
)
recording_take = function_of(
    KEEPING_GIL,
    "sharded_infer_recording_take",
    ctypes.c_void_p,
    ctypes.c_void_p,
)
recording_finish = function_of(
    KEEPING_GIL,
    "sharded_infer_recording_finish",
    None,
    ctypes.c_void_p,
    ctypes.c_void_p,
)
recording_route = function_of(
    KEEPING_GIL,
    "sharded_infer_recording_route",
    ctypes.c_void_p,
    ctypes.c_void_p,
)
recording_read = function_of(
    LIBRARY,
    "sharded_infer_recording_read",
    None,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.POINTER(RecordedCalls),
)
