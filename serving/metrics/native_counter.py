"""The compiled counter of requests (`native/base/counting.cpp`)."""

import ctypes

from kernels.native_library import keeping_gil, load_library


class Boundaries(ctypes.Structure):
    """`Boundaries` of native/base/counting.h."""

    _fields_ = (("values", ctypes.c_void_p), ("count", ctypes.c_int64))


class AnsweredCells(ctypes.Structure):
    """`AnsweredCells` of native/base/counting.h."""

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
    )


def _load() -> ctypes.PyDLL:
    library = load_library("serving")
    counter = keeping_gil(library)
    integer, address = ctypes.c_int64, ctypes.c_void_p
    answered = counter.sharded_infer_count_answered
    answered.restype = None
    answered.argtypes = (address, address, address, integer, ctypes.c_double)
    bags = counter.sharded_infer_count_empty_bags
    bags.restype = None
    bags.argtypes = (address, address, address, integer, integer, address, integer)
    return counter


# Calls keep the GIL, as they are short.
COUNTER = _load()
