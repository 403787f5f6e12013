"""native/abi/pair_biases.h; written by native/abi/generate.py."""

import ctypes

from kernels.abi import LIBRARY
from kernels.native_library import check_layout


class PairBiases(ctypes.Structure):
    _fields_ = (
        ("numbers", ctypes.c_void_p),
        ("fixed", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("thresholds", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("fixed_stride", ctypes.c_int64),
        ("positions", ctypes.c_int64),
        ("first", ctypes.c_int64),
        ("cells", ctypes.c_int32),
        ("first_cell", ctypes.c_int32),
        ("shift", ctypes.c_int32),
        ("no_number", ctypes.c_float),
        ("least", ctypes.c_float),
        ("greatest", ctypes.c_float),
        ("turned", ctypes.c_int32),
        ("causal", ctypes.c_int32),
    )


check_layout(LIBRARY, "pair_biases", 0x5BB84C84, {
    PairBiases: 0xF48ED1FE,
})
