"""native/abi/attention.h; written by native/abi/generate.py."""

import ctypes
from enum import IntEnum

from kernels.abi import LIBRARY
from kernels.native_library import check_layout, function_of


class Weights(IntEnum):
    SOFTMAX = 0
    SILU = 1


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
        ("query_sample", ctypes.c_int64),
        ("query_head", ctypes.c_int64),
        ("query_row", ctypes.c_int64),
        ("key_sample", ctypes.c_int64),
        ("key_head", ctypes.c_int64),
        ("key_row", ctypes.c_int64),
        ("value_sample", ctypes.c_int64),
        ("value_head", ctypes.c_int64),
        ("value_row", ctypes.c_int64),
        ("bias_sample", ctypes.c_int64),
        ("bias_head", ctypes.c_int64),
        ("bias_row", ctypes.c_int64),
        ("mask_sample", ctypes.c_int64),
        ("mask_head", ctypes.c_int64),
        ("mask_row", ctypes.c_int64),
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
    Attention: 0x5D6D9D61,
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
