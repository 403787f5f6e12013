"""native/abi/dense.h; written by native/abi/generate.py."""

import ctypes
from enum import IntEnum

from kernels.abi import LIBRARY
from kernels.native_library import check_layout, function_of


class Low(IntEnum):
    NOTHING = 0
    BFLOATS = 1
    BYTES = 2


class DenseStep(ctypes.Structure):
    _fields_ = (
        ("values", ctypes.c_void_p),
        ("first", ctypes.c_void_p),
        ("factor", ctypes.c_void_p),
        ("inverse_scale", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("low", ctypes.c_void_p),
        ("poison", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("zero_point", ctypes.c_float),
        ("factor_bf16", ctypes.c_int32),
        ("low_kind", ctypes.c_int32),
    )


check_layout(LIBRARY, "dense", 0xF6CC1C23, {
    DenseStep: 0xCF675EB4,
})
dense_step = function_of(
    LIBRARY,
    "sharded_infer_dense_step",
    None,
    ctypes.c_int32,
    ctypes.POINTER(DenseStep),
)
