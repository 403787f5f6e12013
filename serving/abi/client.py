"""native/abi/client.h; written by native/abi/generate.py."""

import ctypes

from kernels.native_library import check_layout, function_of
from serving.abi import KEEPING_GIL, LIBRARY


class EndpointSettings(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("host", ctypes.c_char_p),
        ("port", ctypes.c_char_p),
        ("authority", ctypes.c_char_p),
        ("server_name", ctypes.c_char_p),
    )


class Settings(ctypes.Structure):
    _fields_ = (
        ("endpoints", ctypes.c_void_p),
        ("endpoint_count", ctypes.c_int32),
        ("paths", ctypes.c_void_p),
        ("path_count", ctypes.c_int32),
        ("user_agent", ctypes.c_char_p),
        ("authorization", ctypes.c_char_p),
        ("ca", ctypes.c_char_p),
        ("certificate", ctypes.c_char_p),
        ("key", ctypes.c_char_p),
        ("max_answer_bytes", ctypes.c_int64),
        ("max_header_bytes", ctypes.c_int64),
        ("connect_seconds", ctypes.c_double),
        ("keepalive_seconds", ctypes.c_double),
        ("keepalive_timeout_seconds", ctypes.c_double),
        ("least_backoff_seconds", ctypes.c_double),
        ("most_backoff_seconds", ctypes.c_double),
    )


class Outgoing(ctypes.Structure):
    _fields_ = (
        ("message", ctypes.c_void_p),
        ("bytes", ctypes.c_int64),
        ("traceparent", ctypes.c_char_p),
        ("timeout", ctypes.c_double),
        ("endpoint", ctypes.c_int32),
        ("path", ctypes.c_int32),
        ("may_repeat", ctypes.c_int32),
    )


class Ended(ctypes.Structure):
    _fields_ = (
        ("message", ctypes.c_void_p),
        ("bytes", ctypes.c_int64),
        ("words", ctypes.c_void_p),
        ("words_bytes", ctypes.c_int64),
        ("code", ctypes.c_int32),
    )


check_layout(LIBRARY, "client", 0xA02C691A, {
    EndpointSettings: 0xB9352510,
    Settings: 0x10886E93,
    Outgoing: 0xD243B9FD,
    Ended: 0x8A61A8B1,
})
client_make = function_of(
    LIBRARY,
    "sharded_infer_client_make",
    ctypes.c_void_p,
    ctypes.POINTER(Settings),
    ctypes.c_void_p,
    ctypes.c_int64,
)
client_start = function_of(
    LIBRARY,
    "sharded_infer_client_start",
    None,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int32,
)
client_wait = function_of(
    LIBRARY,
    "sharded_infer_client_wait",
    ctypes.c_int32,
    ctypes.c_void_p,
    ctypes.c_double,
    ctypes.c_int32,
    ctypes.c_void_p,
    ctypes.c_int32,
)
client_cancel = function_of(
    LIBRARY,
    "sharded_infer_client_cancel",
    None,
    ctypes.c_void_p,
    ctypes.c_int32,
)
client_results = function_of(
    KEEPING_GIL,
    "sharded_infer_client_results",
    None,
    ctypes.c_void_p,
    ctypes.c_int32,
    ctypes.c_int32,
    ctypes.c_void_p,
)
client_give_back = function_of(
    KEEPING_GIL,
    "sharded_infer_client_give_back",
    None,
    ctypes.c_void_p,
    ctypes.c_void_p,
)
client_clear = function_of(LIBRARY, "sharded_infer_client_clear", None, ctypes.c_void_p)
client_destroy = function_of(LIBRARY, "sharded_infer_client_destroy", None, ctypes.c_void_p)
