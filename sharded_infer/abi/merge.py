"""native/abi/merge.h; written by native/abi/generate.py."""

import ctypes

from kernels.native_library import check_layout, function_of
from sharded_infer.abi import KEEPING_GIL, LIBRARY


class MergedGroup(ctypes.Structure):
    _fields_ = (
        ("lengths", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
    )


class Place(ctypes.Structure):
    _fields_ = (
        ("bags", ctypes.c_int64),
        ("ids", ctypes.c_int64),
        ("count", ctypes.c_int64),
        ("single", ctypes.c_int64),
    )


class Merge(ctypes.Structure):
    _fields_ = (
        ("requests", ctypes.c_int64),
        ("features", ctypes.c_int64),
        ("batch_sizes", ctypes.c_void_p),
        ("layouts", ctypes.c_void_p),
        ("order", ctypes.c_void_p),
        ("single", ctypes.c_void_p),
        ("shared", ctypes.c_void_p),
        ("lengths", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
        ("places", ctypes.c_void_p),
        ("id_counts", ctypes.c_int64 * 2),
        ("groups", MergedGroup * 2),
    )


class BagSource(ctypes.Structure):
    _fields_ = (
        ("lengths", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
        ("bags", ctypes.c_int64),
    )


class Uniform(ctypes.Structure):
    _fields_ = (
        ("requests", ctypes.c_int64),
        ("features", ctypes.c_int64),
        ("parts", ctypes.c_void_p),
        ("out", MergedGroup),
    )


check_layout(LIBRARY, "merge", 0x1F49F945, {
    MergedGroup: 0x3107A878,
    Place: 0xA15204DB,
    Merge: 0xC15D22A3,
    BagSource: 0x1C6572D7,
    Uniform: 0x54229F4D,
})
measure_merge = function_of(LIBRARY, "sharded_infer_measure_merge", None, ctypes.POINTER(Merge))
measure_merge_keeping_gil = function_of(
    KEEPING_GIL,
    "sharded_infer_measure_merge",
    None,
    ctypes.POINTER(Merge),
)
merge = function_of(LIBRARY, "sharded_infer_merge", None, ctypes.POINTER(Merge))
merge_keeping_gil = function_of(KEEPING_GIL, "sharded_infer_merge", None, ctypes.POINTER(Merge))
merge_uniform = function_of(LIBRARY, "sharded_infer_merge_uniform", None, ctypes.POINTER(Uniform))
merge_uniform_keeping_gil = function_of(
    KEEPING_GIL,
    "sharded_infer_merge_uniform",
    None,
    ctypes.POINTER(Uniform),
)
