"""native/abi/lookup_messages.h; written by native/abi/generate.py."""

import ctypes
from enum import IntEnum

from kernels.native_library import check_layout, function_of
from serving.abi import KEEPING_GIL, LIBRARY


class Refusal(IntEnum):
    NONE = 0
    NO_RESPONSE = 1
    OTHER_GROUPS = 2
    OTHER_SUMS = 3
    OTHER_ENTRIES = 4
    OTHER_ROWS = 5
    FEW_ROW_BYTES = 6
    MORE_ROW_BYTES = 7
    OTHER_UNKNOWN = 8


class PieceBags(ctypes.Structure):
    _fields_ = (
        ("pieces", ctypes.c_void_p),
        ("lengths", ctypes.c_void_p),
        ("ids", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
        ("entries", ctypes.c_int64),
        ("bags", ctypes.c_int64),
        ("id_count", ctypes.c_int64),
        ("sum_bytes", ctypes.c_int64),
        ("raw", ctypes.c_int64),
    )


class Named(ctypes.Structure):
    _fields_ = (
        ("model", ctypes.c_char_p),
        ("version", ctypes.c_uint64),
        ("manifest", ctypes.c_uint64),
    )


class Asked(ctypes.Structure):
    _fields_ = (
        ("share", ctypes.c_uint64),
        ("group_count", ctypes.c_int64),
        ("rows", ctypes.c_int64),
    )


class AskedPiece(ctypes.Structure):
    _fields_ = (
        ("columns", ctypes.c_int64),
        ("row_bytes", ctypes.c_int64),
        ("format", ctypes.c_int64),
        ("mean", ctypes.c_int64),
    )


class AskedGroup(ctypes.Structure):
    _fields_ = (
        ("pieces", ctypes.c_void_p),
        ("lengths", ctypes.c_void_p),
        ("ids", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
        ("entries", ctypes.c_int64),
        ("bags", ctypes.c_int64),
        ("id_count", ctypes.c_int64),
        ("columns", ctypes.c_int64),
        ("sum_bytes", ctypes.c_int64),
        ("raw", ctypes.c_int64),
        ("pooled", ctypes.c_void_p),
        ("sums", ctypes.c_void_p),
        ("unknown", ctypes.c_void_p),
    )


class Refused(ctypes.Structure):
    _fields_ = (
        ("reason", ctypes.c_int64),
        ("group", ctypes.c_int64),
        ("entry", ctypes.c_int64),
        ("expected", ctypes.c_int64),
        ("got", ctypes.c_int64),
    )


check_layout(LIBRARY, "lookup_messages", 0xE9C777EF, {
    PieceBags: 0xC43B5292,
    Named: 0x47BECB13,
    Asked: 0x6B6BD358,
    AskedPiece: 0xE210D480,
    AskedGroup: 0xABE5CE2B,
    Refused: 0x4F27605D,
})
lookup_most_bytes = function_of(
    LIBRARY,
    "sharded_infer_lookup_most_bytes",
    ctypes.c_int64,
    ctypes.POINTER(Named),
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_void_p,
)
lookup_most_bytes_keeping_gil = function_of(
    KEEPING_GIL,
    "sharded_infer_lookup_most_bytes",
    ctypes.c_int64,
    ctypes.POINTER(Named),
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_void_p,
)
lookup_write = function_of(
    LIBRARY,
    "sharded_infer_lookup_write",
    None,
    ctypes.POINTER(Named),
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
)
lookup_write_keeping_gil = function_of(
    KEEPING_GIL,
    "sharded_infer_lookup_write",
    None,
    ctypes.POINTER(Named),
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
)
answer_read = function_of(
    LIBRARY,
    "sharded_infer_answer_read",
    ctypes.c_int32,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_void_p,
    ctypes.c_int32,
    ctypes.POINTER(Refused),
)
answer_read_keeping_gil = function_of(
    KEEPING_GIL,
    "sharded_infer_answer_read",
    ctypes.c_int32,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_void_p,
    ctypes.c_int32,
    ctypes.POINTER(Refused),
)
