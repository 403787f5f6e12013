"""native/abi/lookup_run.h; written by native/abi/generate.py."""

import ctypes
from enum import IntEnum

from kernels.abi import KEEPING_GIL, LIBRARY
from kernels.native_library import check_layout, function_of


class LookupIds(IntEnum):
    ALL_IDS = 0
    IDS_OF_ROWS = 1
    IDS_OF_HASHES = 2


class LookupEnd(IntEnum):
    LOOKED_UP = 0
    FILE_LOST = 1
    ROWS_MISSING = 2
    WRONG_REPEATS = 3
    NO_MEMORY = 4


class LookupEntry(ctypes.Structure):
    _fields_ = (
        ("feature", ctypes.c_int64),
        ("row_bytes", ctypes.c_int64),
        ("first", ctypes.c_uint64),
        ("last", ctypes.c_uint64),
    )


class LookupColumns(ctypes.Structure):
    _fields_ = (
        ("column", ctypes.c_int64),
        ("source", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("added", ctypes.c_int64),
    )


class LookupPart(ctypes.Structure):
    _fields_ = (
        ("entries", ctypes.c_void_p),
        ("entry_count", ctypes.c_int64),
        ("columns", ctypes.c_void_p),
        ("column_count", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("rank", ctypes.c_int64),
        ("ids", ctypes.c_int32),
        ("is_adjacent", ctypes.c_int32),
    )


class LookupTier(ctypes.Structure):
    _fields_ = (
        ("tier", ctypes.c_void_p),
        ("first_row", ctypes.c_int64),
    )


class LookupStep(ctypes.Structure):
    _fields_ = (
        ("part", ctypes.c_void_p),
        ("features", ctypes.c_void_p),
        ("placed", ctypes.c_void_p),
        ("tiers", ctypes.c_void_p),
        ("format", ctypes.c_int32),
    )


class LookupMean(ctypes.Structure):
    _fields_ = (
        ("feature", ctypes.c_int64),
        ("column", ctypes.c_int64),
        ("width", ctypes.c_int64),
    )


class LookupZeros(ctypes.Structure):
    _fields_ = (
        ("column", ctypes.c_int64),
        ("width", ctypes.c_int64),
    )


class LookupWatch(ctypes.Structure):
    _fields_ = (
        ("lost", ctypes.c_void_p),
        ("place", ctypes.c_void_p),
        ("byte", ctypes.c_int32),
    )


class LookupPlan(ctypes.Structure):
    _fields_ = (
        ("steps", ctypes.c_void_p),
        ("step_count", ctypes.c_int64),
        ("zeros", ctypes.c_void_p),
        ("zeros_count", ctypes.c_int64),
        ("means", ctypes.c_void_p),
        ("mean_count", ctypes.c_int64),
        ("watches", ctypes.c_void_p),
        ("watch_count", ctypes.c_int64),
        ("instruction_set", ctypes.c_int32),
        ("is_merged", ctypes.c_int32),
    )


class LookupGroup(ctypes.Structure):
    _fields_ = (
        ("plan", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("lengths", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
        ("features", ctypes.c_int64),
        ("bags", ctypes.c_int64),
        ("repeats", ctypes.c_void_p),
        ("samples", ctypes.c_int64),
        ("places", ctypes.c_int64),
        ("out", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("stride", ctypes.c_int64),
        ("apart", ctypes.c_void_p),
    )


class LookupWork(ctypes.Structure):
    _fields_ = (
        ("rank", ctypes.c_int64),
        ("ids", ctypes.c_int64),
        ("row_bytes", ctypes.c_int64),
        ("seconds", ctypes.c_double),
    )


class LookupRun(ctypes.Structure):
    _fields_ = (
        ("groups", ctypes.c_void_p),
        ("group_count", ctypes.c_int64),
        ("deadline", ctypes.c_double),
        ("most_seconds", ctypes.c_double),
        ("work", ctypes.c_void_p),
        ("saved", ctypes.c_int64),
        ("end", ctypes.c_int32),
        ("why", ctypes.c_int32),
        ("error", ctypes.c_int32),
        ("group", ctypes.c_int64),
        ("step", ctypes.c_int64),
        ("entry", ctypes.c_int64),
        ("row", ctypes.c_int64),
        ("count", ctypes.c_int64),
        ("seconds", ctypes.c_double),
    )


class LookupChosen(ctypes.Structure):
    _fields_ = (
        ("ids", ctypes.c_int64),
        ("row_bytes", ctypes.c_int64),
        ("saved", ctypes.c_int64),
        ("first_id", ctypes.c_int64),
    )


class LookupResult(ctypes.Structure):
    _fields_ = (
        ("part", ctypes.c_void_p),
        ("numbers", ctypes.c_void_p),
        ("stride", ctypes.c_int64),
    )


check_layout(LIBRARY, "lookup_run", 0x9AC3D3E8, {
    LookupEntry: 0xE282996D,
    LookupColumns: 0x104794CA,
    LookupPart: 0x86641AB8,
    LookupTier: 0xE02275CD,
    LookupStep: 0x8555E1C2,
    LookupMean: 0x1FE36853,
    LookupZeros: 0x1599C0A8,
    LookupWatch: 0x844A95C9,
    LookupPlan: 0xFF786590,
    LookupGroup: 0x936123FD,
    LookupWork: 0xDEFA151A,
    LookupRun: 0x9CE7A976,
    LookupChosen: 0x599D5915,
    LookupResult: 0x91E017E5,
})
lookup_run = function_of(LIBRARY, "sharded_infer_lookup_run", None, ctypes.POINTER(LookupRun))
lookup_choose = function_of(
    LIBRARY,
    "sharded_infer_lookup_choose",
    None,
    ctypes.POINTER(LookupGroup),
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
)
lookup_choose_keeping_gil = function_of(
    KEEPING_GIL,
    "sharded_infer_lookup_choose",
    None,
    ctypes.POINTER(LookupGroup),
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
)
lookup_merge = function_of(
    LIBRARY,
    "sharded_infer_lookup_merge",
    ctypes.c_int64,
    ctypes.POINTER(LookupGroup),
    ctypes.c_void_p,
    ctypes.c_int64,
)
lookup_merge_keeping_gil = function_of(
    KEEPING_GIL,
    "sharded_infer_lookup_merge",
    ctypes.c_int64,
    ctypes.POINTER(LookupGroup),
    ctypes.c_void_p,
    ctypes.c_int64,
)
