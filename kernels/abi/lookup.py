"""native/abi/lookup.h; written by native/abi/generate.py."""

import ctypes
from enum import IntEnum

from kernels.abi import LIBRARY
from kernels.native_library import check_layout, function_of


class Format(IntEnum):
    FP32 = 0
    FP16 = 1
    BF16 = 2
    FP8 = 3
    INT8 = 4
    INT4 = 5
    INT2 = 6


WORD_ROWS = 64
LINE_ROWS = 512


class RowOverlay(ctypes.Structure):
    _fields_ = (
        ("groups", ctypes.c_void_p),
        ("changed", ctypes.c_void_p),
        ("before", ctypes.c_void_p),
        ("rows", ctypes.c_void_p),
        ("group_shift", ctypes.c_int64),
        ("first_row", ctypes.c_int64),
    )


class Feature(ctypes.Structure):
    _fields_ = (
        ("rows", ctypes.c_void_p),
        ("row_bytes", ctypes.c_int64),
        ("dim", ctypes.c_int64),
        ("column", ctypes.c_int64),
        ("mean", ctypes.c_int32),
        ("overlay", ctypes.c_void_p),
    )


class Lookup(ctypes.Structure):
    _fields_ = (
        ("features", ctypes.c_void_p),
        ("feature_count", ctypes.c_int64),
        ("batch", ctypes.c_int64),
        ("values", ctypes.c_void_p),
        ("lengths", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("stride", ctypes.c_int64),
        ("format", ctypes.c_int32),
        ("out_bf16", ctypes.c_int32),
        ("places", ctypes.c_void_p),
    )


check_layout(LIBRARY, "lookup", 0x0863AA7F, {
    RowOverlay: 0xF15DFB16,
    Feature: 0x0FD38BCD,
    Lookup: 0xBA619219,
})
lookup = function_of(LIBRARY, "sharded_infer_lookup", None, ctypes.c_int32, ctypes.POINTER(Lookup))
gather = function_of(
    LIBRARY,
    "sharded_infer_gather",
    None,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_void_p,
    ctypes.c_int64,
)
inside = function_of(
    LIBRARY,
    "sharded_infer_inside",
    ctypes.c_int32,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_int64,
    ctypes.c_int64,
)
