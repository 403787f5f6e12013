"""native/abi/row_steps.h; written by native/abi/generate.py."""

import ctypes
from enum import IntEnum

from kernels.abi import KEEPING_GIL, LIBRARY
from kernels.native_library import check_layout, function_of


class StepKind(IntEnum):
    LINEAR = 0
    NORM = 1
    SUM = 2
    DIFFERENCE = 3
    PRODUCT = 4
    RELU = 5
    SIGMOID = 6
    SILU = 7
    JOINED = 8
    GELU = 9


class StepMemory(ctypes.Structure):
    _fields_ = (
        ("numbers", ctypes.c_void_p),
        ("stride", ctypes.c_int64),
        ("moves", ctypes.c_int64),
    )


class StepColumns(ctypes.Structure):
    _fields_ = (
        ("memory", ctypes.c_int64),
        ("first", ctypes.c_int64),
    )


class RowStep(ctypes.Structure):
    _fields_ = (
        ("weight", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("first", StepColumns),
        ("second", StepColumns),
        ("out", StepColumns),
        ("inputs", ctypes.c_int64),
        ("outputs", ctypes.c_int64),
        ("epsilon", ctypes.c_float),
        ("kind", ctypes.c_int32),
    )


class RowSteps(ctypes.Structure):
    _fields_ = (
        ("memories", ctypes.c_void_p),
        ("steps", ctypes.c_void_p),
        ("step_count", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("tile", ctypes.c_int64),
    )


check_layout(LIBRARY, "row_steps", 0x26B0C651, {
    StepMemory: 0x29725FD9,
    StepColumns: 0xACAAAA0E,
    RowStep: 0x47F8C539,
    RowSteps: 0x7370B380,
})
row_panel_columns = function_of(
    KEEPING_GIL,
    "sharded_infer_row_panel_columns",
    ctypes.c_int64,
    ctypes.c_int32,
)
row_steps = function_of(
    LIBRARY,
    "sharded_infer_row_steps",
    None,
    ctypes.c_int32,
    ctypes.POINTER(RowSteps),
)
