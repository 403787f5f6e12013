"""native/abi/product.h; written by native/abi/generate.py."""

import ctypes
from enum import IntEnum

from kernels.abi import LIBRARY
from kernels.abi.dense import DenseStep
from kernels.native_library import check_layout, function_of


class Factors(IntEnum):
    FP32 = 0
    BF16 = 1
    BYTES = 2


class Product(ctypes.Structure):
    _fields_ = (
        ("x", ctypes.c_void_p),
        ("weight", ctypes.c_void_p),
        ("offset", ctypes.c_void_p),
        ("scale", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("poison", ctypes.c_void_p),
        ("row_bytes", ctypes.c_int64),
        ("factors", ctypes.c_int32),
        ("relu", ctypes.c_int32),
        ("step", DenseStep),
    )


check_layout(LIBRARY, "product", 0x50519B47, {
    Product: 0x4362CDB3,
})
product = function_of(
    LIBRARY,
    "sharded_infer_product",
    None,
    ctypes.c_int32,
    ctypes.POINTER(Product),
)
