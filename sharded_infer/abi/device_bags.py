"""native/abi/device_bags.h; written by native/abi/generate.py."""

import ctypes

from kernels.native_library import check_layout, function_of
from sharded_infer.abi import LIBRARY


class SourceGroup(ctypes.Structure):
    _fields_ = (
        ("lengths", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
        ("features", ctypes.c_int64),
        ("bags", ctypes.c_int64),
    )


class DeviceBags(ctypes.Structure):
    _fields_ = (
        ("features", ctypes.c_int64),
        ("bucket", ctypes.c_int64),
        ("offsets", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("id_bytes", ctypes.c_int64),
        ("weights", ctypes.c_void_p),
    )


check_layout(LIBRARY, "device_bags", 0x7587843A, {
    SourceGroup: 0x6D524350,
    DeviceBags: 0xB8858122,
})
write_bags = function_of(
    LIBRARY,
    "sharded_infer_write_bags",
    None,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.POINTER(DeviceBags),
)
