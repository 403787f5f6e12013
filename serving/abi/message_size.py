"""native/abi/message_size.h; written by native/abi/generate.py."""

import ctypes
from enum import IntEnum

from kernels.native_library import check_layout, function_of
from serving.abi import KEEPING_GIL, LIBRARY


class Excess(IntEnum):
    WITHIN_LIMITS = 0
    TOO_MANY_FIELDS = 1
    TOO_MANY_NUMBERS = 2


class FieldRule(ctypes.Structure):
    _fields_ = (
        ("message", ctypes.c_int32),
        ("field", ctypes.c_int32),
        ("holds", ctypes.c_int32),
    )


class MessageLimits(ctypes.Structure):
    _fields_ = (
        ("fields", ctypes.c_int64),
        ("numbers", ctypes.c_int64),
        ("rules", ctypes.c_void_p),
        ("count", ctypes.c_int64),
    )


check_layout(LIBRARY, "message_size", 0xCEA81E48, {
    FieldRule: 0xB24B36F2,
    MessageLimits: 0x9AF51BA4,
})
check_size = function_of(
    LIBRARY,
    "sharded_infer_check_size",
    ctypes.c_int32,
    ctypes.POINTER(MessageLimits),
    ctypes.c_void_p,
    ctypes.c_int64,
)
check_size_keeping_gil = function_of(
    KEEPING_GIL,
    "sharded_infer_check_size",
    ctypes.c_int32,
    ctypes.POINTER(MessageLimits),
    ctypes.c_void_p,
    ctypes.c_int64,
)
