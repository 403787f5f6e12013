"""native/abi/recording.h; written by native/abi/generate.py."""

import ctypes

from kernels.native_library import check_layout, function_of
from serving.abi import KEEPING_GIL, LIBRARY


class RecordedCalls(ctypes.Structure):
    _fields_ = (
        ("calls", ctypes.c_int64),
        ("unread", ctypes.c_int64),
        ("samples", ctypes.c_void_p),
        ("codes", ctypes.c_void_p),
        ("seconds", ctypes.c_void_p),
        ("ids", ctypes.c_void_p),
        ("id_ends", ctypes.c_void_p),
        ("bag_ends", ctypes.c_void_p),
        ("lengths", ctypes.c_void_p),
        ("value_ends", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
        ("dense_ends", ctypes.c_void_p),
        ("dense", ctypes.c_void_p),
        ("score_ends", ctypes.c_void_p),
        ("scores", ctypes.c_void_p),
    )


check_layout(LIBRARY, "recording", 0x97B82382, {
    RecordedCalls: 0x2AB0D505,
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
recording_finish = function_of(KEEPING_GIL, "sharded_infer_recording_finish", None, ctypes.c_void_p)
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
