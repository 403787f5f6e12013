"""native/abi/encode.h; written by native/abi/generate.py."""

import ctypes
from enum import IntEnum

from kernels.native_library import check_layout, function_of
from quant.abi import LIBRARY


class Refusal(IntEnum):
    NONE = 0
    NOT_FINITE = 1
    BEYOND_HALF = 2


MAX_DIM = 8192


class Encoding(ctypes.Structure):
    _fields_ = (
        ("rows", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("dim", ctypes.c_int64),
        ("bits", ctypes.c_int32),
        ("clip", ctypes.c_int32),
        ("stored", ctypes.c_void_p),
        ("squared_errors", ctypes.c_void_p),
        ("minmax_errors", ctypes.c_void_p),
        ("squares", ctypes.c_void_p),
        ("max_errors", ctypes.c_void_p),
    )


check_layout(LIBRARY, "encode", 0xC058C915, {
    Encoding: 0xC6D4D7C8,
})
encode = function_of(
    LIBRARY,
    "sharded_infer_encode",
    ctypes.c_int64,
    ctypes.c_int32,
    ctypes.POINTER(Encoding),
    ctypes.c_void_p,
)
