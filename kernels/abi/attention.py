"""native/abi/attention.h; written by native/abi/generate.py."""

import ctypes
from enum import IntEnum

from kernels.abi import LIBRARY
from kernels.native_library import check_layout, function_of


class Weights(IntEnum):
    SOFTMAX = 0
    SILU = 1


class Strides(ctypes.Structure):
    _fields_ = (
        ("sample", ctypes.c_int64),
        ("head", ctypes.c_int64),
        ("row", ctypes.c_int64),
    )


class Attention(ctypes.Structure):
    _fields_ = (
        ("query", ctypes.c_void_p),
        ("key", ctypes.c_void_p),
        ("value", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("mask", ctypes.c_void_p),
        ("first", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("space", ctypes.c_void_p),
        ("query_strides", Strides),
        ("key_strides", Strides),
        ("value_strides", Strides),
        ("bias_strides", Strides),
        ("mask_strides", Strides),
        ("samples", ctypes.c_int64),
        ("heads", ctypes.c_int64),
        ("queries", ctypes.c_int64),
        ("keys", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("value_width", ctypes.c_int64),
        ("scale", ctypes.c_float),
        ("divisor", ctypes.c_float),
        ("weights", ctypes.c_int32),
        ("causal", ctypes.c_int32),
    )


check_layout(LIBRARY, "attention", 0x827CE268, {
    Strides: 0xF1EDAC89,
    Attention: 0xDA74E0A5,
})
attention_space = function_of(
    LIBRARY,
    "sharded_infer_attention_space",
    ctypes.c_int64,
    ctypes.POINTER(Attention),
)
attention = function_of(
    LIBRARY,
    "sharded_infer_attention",
    None,
    ctypes.c_int32,
    ctypes.POINTER(Attention),
)
