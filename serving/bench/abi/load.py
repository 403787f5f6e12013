"""native/abi/load.h; written by native/abi/generate.py."""

import ctypes

from kernels.native_library import check_layout, function_of
from serving.bench.abi import LIBRARY


class Settings(ctypes.Structure):
    _fields_ = (
        ("address", ctypes.c_char_p),
        ("port", ctypes.c_char_p),
        ("authority", ctypes.c_char_p),
        ("path", ctypes.c_char_p),
        ("user_agent", ctypes.c_char_p),
        ("messages", ctypes.c_void_p),
        ("offsets", ctypes.c_void_p),
        ("message_count", ctypes.c_int64),
        ("schedule", ctypes.c_void_p),
        ("call_count", ctypes.c_int64),
        ("concurrency", ctypes.c_int64),
        ("seconds", ctypes.c_double),
        ("deadline_seconds", ctypes.c_double),
        ("drain_seconds", ctypes.c_double),
        ("connect_seconds", ctypes.c_double),
        ("connections", ctypes.c_int64),
        ("keep_responses", ctypes.c_int32),
        ("authorization", ctypes.c_char_p),
    )


class Call(ctypes.Structure):
    _fields_ = (
        ("scheduled", ctypes.c_double),
        ("taken", ctypes.c_double),
        ("sent", ctypes.c_double),
        ("latency", ctypes.c_double),
        ("message", ctypes.c_int32),
        ("response_bytes", ctypes.c_int32),
        ("slot", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("refusals", ctypes.c_uint8),
        ("done", ctypes.c_uint8),
    )


class Link(ctypes.Structure):
    _fields_ = (
        ("calls", ctypes.c_int64),
        ("reconnects", ctypes.c_int64),
    )


class Report(ctypes.Structure):
    _fields_ = (
        ("calls", ctypes.c_void_p),
        ("call_count", ctypes.c_int64),
        ("links", ctypes.c_void_p),
        ("seconds", ctypes.c_double),
    )


check_layout(LIBRARY, "load", 0x4B599DAF, {
    Settings: 0x1B3204B6,
    Call: 0xEBE5224F,
    Link: 0x19DFA24C,
    Report: 0x3C81CCF2,
})
load_create = function_of(
    LIBRARY,
    "sharded_infer_load_create",
    ctypes.c_void_p,
    ctypes.POINTER(Settings),
    ctypes.c_void_p,
)
load_step = function_of(
    LIBRARY,
    "sharded_infer_load_step",
    ctypes.c_int32,
    ctypes.c_void_p,
    ctypes.c_double,
    ctypes.c_void_p,
)
load_report = function_of(
    LIBRARY,
    "sharded_infer_load_report",
    None,
    ctypes.c_void_p,
    ctypes.POINTER(Report),
)
load_response = function_of(
    LIBRARY,
    "sharded_infer_load_response",
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_void_p,
)
load_error = function_of(
    LIBRARY,
    "sharded_infer_load_error",
    ctypes.c_char_p,
    ctypes.c_void_p,
    ctypes.c_int32,
)
load_destroy = function_of(LIBRARY, "sharded_infer_load_destroy", None, ctypes.c_void_p)
