"""native/abi/reader.h; written by native/abi/generate.py."""

import ctypes

from kernels.native_library import check_layout
from serving.abi import LIBRARY


class Group(ctypes.Structure):
    _fields_ = (
        ("features", ctypes.c_int64),
        ("bags", ctypes.c_int64),
        ("ids", ctypes.c_int64),
        ("weighted", ctypes.c_int64),
        ("lengths_at", ctypes.c_int64),
        ("values_at", ctypes.c_int64),
        ("weights_at", ctypes.c_int64),
    )


class Layout(ctypes.Structure):
    _fields_ = (
        ("batch", ctypes.c_int64),
        ("words", ctypes.c_int64),
        ("ids_outside", ctypes.c_int64),
        ("at_once", ctypes.c_int64),
        ("gaps", ctypes.c_int64),
        ("groups", Group * 2),
    )


check_layout(LIBRARY, "reader", 0x5BB84C84, {
    Group: 0x681DFE7E,
    Layout: 0x678A6ED0,
})
