"""native/abi/counting.h; written by native/abi/generate.py."""

import ctypes

from kernels.native_library import check_layout, function_of
from serving.abi import KEEPING_GIL, LIBRARY


TIMES = 6


class AnsweredRequest(ctypes.Structure):
    _fields_ = (
        ("samples", ctypes.c_double),
        ("seconds", ctypes.c_double * 6),
        ("ids_outside", ctypes.c_double),
    )


class Boundaries(ctypes.Structure):
    _fields_ = (
        ("values", ctypes.c_void_p),
        ("count", ctypes.c_int64),
    )


class AnsweredCells(ctypes.Structure):
    _fields_ = (
        ("ok", ctypes.c_int64),
        ("samples", ctypes.c_int64),
        ("last_request", ctypes.c_int64),
        ("sums", ctypes.c_int64 * 6),
        ("with_histograms", ctypes.c_int64),
        ("worker_requests", ctypes.c_int64),
        ("ids_outside", ctypes.c_int64),
        ("buckets", ctypes.c_int64 * 6),
        ("boundaries", Boundaries * 6),
        ("empty_bags", ctypes.c_void_p),
    )


check_layout(LIBRARY, "counting", 0x98FAEABB, {
    AnsweredRequest: 0x1440DCA7,
    Boundaries: 0x3DB58375,
    AnsweredCells: 0x9E6119CE,
})
count_answered = function_of(
    KEEPING_GIL,
    "sharded_infer_count_answered",
    None,
    ctypes.c_void_p,
    ctypes.POINTER(AnsweredCells),
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_double,
)
count_unknown = function_of(
    KEEPING_GIL,
    "sharded_infer_count_unknown",
    None,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int64,
)
