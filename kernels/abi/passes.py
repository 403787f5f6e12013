"""native/abi/passes.h; written by native/abi/generate.py."""

import ctypes
from enum import IntEnum

from kernels.abi import LIBRARY
from kernels.native_library import check_layout, function_of


class PassKind(IntEnum):
    ROWS = 0
    ATTENTION = 1
    PAIR_BIASES = 2


POSITIONS = -1
CANDIDATES = -2
LAST_ROW = -1
LAST_ROWS = -2


class PassMemory(ctypes.Structure):
    _fields_ = (
        ("numbers", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("width", ctypes.c_int64),
    )


class PassOperand(ctypes.Structure):
    _fields_ = (
        ("memory", ctypes.c_int64),
        ("column", ctypes.c_int64),
        ("row", ctypes.c_int64),
    )


class RowsOfPass(ctypes.Structure):
    _fields_ = (
        ("steps", ctypes.c_void_p),
        ("step_count", ctypes.c_int64),
        ("constants", ctypes.c_void_p),
        ("constant_count", ctypes.c_int64),
        ("scratch_width", ctypes.c_int64),
        ("tile", ctypes.c_int64),
    )


class Pass(ctypes.Structure):
    _fields_ = (
        ("operands", ctypes.c_void_p),
        ("operand_count", ctypes.c_int64),
        ("details", ctypes.c_void_p),
        ("kind", ctypes.c_int32),
        ("rows", ctypes.c_int32),
    )


class StateOfPasses(ctypes.Structure):
    _fields_ = (
        ("memory", ctypes.c_int64),
        ("column", ctypes.c_int64),
        ("width", ctypes.c_int64),
    )


class Passes(ctypes.Structure):
    _fields_ = (
        ("memories", ctypes.c_void_p),
        ("memory_count", ctypes.c_int64),
        ("passes", ctypes.c_void_p),
        ("pass_count", ctypes.c_int64),
        ("given_count", ctypes.c_int64),
        ("input_count", ctypes.c_int64),
        ("states", ctypes.c_void_p),
        ("state_count", ctypes.c_int64),
    )


class PassesRun(ctypes.Structure):
    _fields_ = (
        ("passes", ctypes.c_void_p),
        ("given", ctypes.c_void_p),
        ("numbers", ctypes.c_void_p),
        ("positions", ctypes.c_void_p),
        ("candidates", ctypes.c_void_p),
        ("blocks", ctypes.c_void_p),
        ("requests", ctypes.c_int64),
        ("memory", ctypes.c_int64),
        ("expected", ctypes.c_int64),
    )


check_layout(LIBRARY, "passes", 0xA43C9D09, {
    PassMemory: 0x777636A1,
    PassOperand: 0x918966A5,
    RowsOfPass: 0xA4EDF8E6,
    Pass: 0x8CE88520,
    StateOfPasses: 0xEA2792A2,
    Passes: 0xD89A1934,
    PassesRun: 0x90D027DF,
})
passes = function_of(
    LIBRARY,
    "sharded_infer_passes",
    ctypes.c_int32,
    ctypes.c_int32,
    ctypes.POINTER(PassesRun),
)
