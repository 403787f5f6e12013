"""native/abi/transport.h; written by native/abi/generate.py."""

import ctypes
from enum import IntEnum

from kernels.native_library import check_layout, function_of
from serving.abi import KEEPING_GIL, LIBRARY


class MethodKind(IntEnum):
    UNARY = 0
    STREAM = 1
    CALLS = 2


class AccessBit(IntEnum):
    OPEN = 0
    ANY_TOKEN = 1
    PREDICT = 2
    ADMIN = 4
    METRICS = 8
    ELSEWHERE = 16
    NOT_HERE = 32


class EventKind(IntEnum):
    CALL = 0
    OPENED = 1
    MESSAGE = 2
    HALF_CLOSED = 3
    CANCELLED = 4


class Encoding(IntEnum):
    IDENTITY = 0
    GZIP = 1
    DEFLATE = 2
    OTHER = 3


class Method(ctypes.Structure):
    _fields_ = (
        ("path", ctypes.c_char_p),
        ("kind", ctypes.c_int32),
        ("access", ctypes.c_int32),
        ("with_headers", ctypes.c_int32),
    )


class Route(ctypes.Structure):
    _fields_ = (
        ("verb", ctypes.c_char_p),
        ("path", ctypes.c_char_p),
        ("access", ctypes.c_int32),
        ("is_probe", ctypes.c_int32),
        ("max_body", ctypes.c_int64),
    )


class Token(ctypes.Structure):
    _fields_ = (
        ("digest", ctypes.c_uint8 * 32),
        ("scopes", ctypes.c_int32),
        ("name", ctypes.c_char_p),
    )


class Settings(ctypes.Structure):
    _fields_ = (
        ("listeners", ctypes.c_void_p),
        ("listener_count", ctypes.c_int32),
        ("methods", ctypes.c_void_p),
        ("method_count", ctypes.c_int32),
        ("http_listeners", ctypes.c_void_p),
        ("http_listener_count", ctypes.c_int32),
        ("routes", ctypes.c_void_p),
        ("route_count", ctypes.c_int32),
        ("http_answers_once", ctypes.c_int32),
        ("tokens", ctypes.c_void_p),
        ("token_count", ctypes.c_int32),
        ("rates_of", ctypes.c_void_p),
        ("certificate", ctypes.c_char_p),
        ("key", ctypes.c_char_p),
        ("client_ca", ctypes.c_char_p),
        ("max_message_bytes", ctypes.c_int64),
        ("max_held_bytes", ctypes.c_int64),
        ("max_connections", ctypes.c_int64),
        ("max_address_connections", ctypes.c_int64),
        ("max_connection_calls", ctypes.c_int64),
        ("max_calls", ctypes.c_int64),
        ("max_header_bytes", ctypes.c_int64),
        ("max_stream_messages", ctypes.c_int64),
        ("max_streams", ctypes.c_int64),
        ("handshake_seconds", ctypes.c_double),
        ("message_seconds", ctypes.c_double),
        ("idle_seconds", ctypes.c_double),
        ("stalled_seconds", ctypes.c_double),
        ("keepalive_seconds", ctypes.c_double),
        ("keepalive_timeout_seconds", ctypes.c_double),
        ("least_ping_seconds", ctypes.c_double),
        ("age_seconds", ctypes.c_double),
        ("grace_seconds", ctypes.c_double),
        ("rate", ctypes.c_double),
        ("burst", ctypes.c_double),
        ("busy_poll_seconds", ctypes.c_double),
    )


class Event(ctypes.Structure):
    _fields_ = (
        ("call", ctypes.c_uint64),
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_int64),
        ("headers", ctypes.c_void_p),
        ("header_bytes", ctypes.c_int64),
        ("seconds_left", ctypes.c_double),
        ("kind", ctypes.c_int32),
        ("method", ctypes.c_int32),
        ("encoding", ctypes.c_int32),
        ("place", ctypes.c_int32),
    )


class Counters(ctypes.Structure):
    _fields_ = (
        ("connections", ctypes.c_int64),
        ("accepted", ctypes.c_int64),
        ("calls", ctypes.c_int64),
        ("held_bytes", ctypes.c_int64),
        ("too_many_connections", ctypes.c_int64),
        ("too_many_of_address", ctypes.c_int64),
        ("handshakes_failed", ctypes.c_int64),
        ("too_late", ctypes.c_int64),
        ("protocol_errors", ctypes.c_int64),
        ("too_many_resets", ctypes.c_int64),
        ("too_many_frames", ctypes.c_int64),
        ("too_many_pings", ctypes.c_int64),
        ("too_many_calls", ctypes.c_int64),
        ("not_reading", ctypes.c_int64),
        ("keepalive_lost", ctypes.c_int64),
        ("bodies_too_late", ctypes.c_int64),
        ("no_descriptors", ctypes.c_int64),
        ("silent_streams", ctypes.c_int64),
        ("refused", ctypes.c_int64 * 17),
        ("refused_predict", ctypes.c_int64 * 17),
    )


check_layout(LIBRARY, "transport", 0x5EBB263D, {
    Method: 0x112A0C57,
    Route: 0x1B504E76,
    Token: 0x7D8AF489,
    Settings: 0xF95E03DA,
    Event: 0x6E8B6CB8,
    Counters: 0x0EDF2CD6,
})
transport_http2_version = function_of(
    LIBRARY,
    "sharded_infer_transport_http2_version",
    ctypes.c_int32,
    ctypes.c_void_p,
    ctypes.c_int64,
)
transport_http2_is_linked = function_of(
    LIBRARY,
    "sharded_infer_transport_http2_is_linked",
    ctypes.c_bool,
)
transport_tls_version = function_of(
    LIBRARY,
    "sharded_infer_transport_tls_version",
    ctypes.c_bool,
    ctypes.c_void_p,
    ctypes.c_int64,
)
transport_tls_is_linked = function_of(
    LIBRARY,
    "sharded_infer_transport_tls_is_linked",
    ctypes.c_bool,
)
transport_start = function_of(
    LIBRARY,
    "sharded_infer_transport_start",
    ctypes.c_void_p,
    ctypes.POINTER(Settings),
    ctypes.c_void_p,
    ctypes.c_int64,
)
transport_counters = function_of(
    LIBRARY,
    "sharded_infer_transport_counters",
    ctypes.POINTER(Counters),
    ctypes.c_void_p,
)
transport_fetch = function_of(
    LIBRARY,
    "sharded_infer_transport_fetch",
    ctypes.c_int32,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int32,
    ctypes.c_int32,
    ctypes.c_int32,
)
transport_respond = function_of(
    KEEPING_GIL,
    "sharded_infer_transport_respond",
    None,
    ctypes.c_void_p,
    ctypes.c_uint64,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_int32,
)
transport_respond_http = function_of(
    KEEPING_GIL,
    "sharded_infer_transport_respond_http",
    None,
    ctypes.c_void_p,
    ctypes.c_uint64,
    ctypes.c_char_p,
    ctypes.c_int64,
    ctypes.c_void_p,
    ctypes.c_int64,
)
transport_respond_http_later = function_of(
    KEEPING_GIL,
    "sharded_infer_transport_respond_http_later",
    ctypes.c_bool,
    ctypes.c_void_p,
    ctypes.c_uint64,
    ctypes.c_char_p,
    ctypes.c_int64,
    ctypes.c_void_p,
    ctypes.c_int64,
)
transport_finish = function_of(
    KEEPING_GIL,
    "sharded_infer_transport_finish",
    None,
    ctypes.c_void_p,
    ctypes.c_uint64,
    ctypes.c_int32,
    ctypes.c_char_p,
    ctypes.c_int64,
    ctypes.c_char_p,
    ctypes.c_int64,
)
transport_refuse_message = function_of(
    KEEPING_GIL,
    "sharded_infer_transport_refuse_message",
    None,
    ctypes.c_void_p,
    ctypes.c_uint64,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_int32,
    ctypes.c_char_p,
    ctypes.c_int64,
)
transport_hold = function_of(KEEPING_GIL, "sharded_infer_transport_hold", None, ctypes.c_void_p)
transport_flush = function_of(LIBRARY, "sharded_infer_transport_flush", None, ctypes.c_void_p)
transport_set_tokens = function_of(
    KEEPING_GIL,
    "sharded_infer_transport_set_tokens",
    ctypes.c_bool,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int32,
)
transport_set_fixed_answer = function_of(
    KEEPING_GIL,
    "sharded_infer_transport_set_fixed_answer",
    None,
    ctypes.c_void_p,
    ctypes.c_int32,
    ctypes.c_char_p,
    ctypes.c_int64,
    ctypes.c_char_p,
    ctypes.c_int64,
)
transport_set_backlog = function_of(
    KEEPING_GIL,
    "sharded_infer_transport_set_backlog",
    None,
    ctypes.c_void_p,
    ctypes.c_double,
)
transport_set_urgent_lead = function_of(
    KEEPING_GIL,
    "sharded_infer_transport_set_urgent_lead",
    None,
    ctypes.c_void_p,
    ctypes.c_double,
)
transport_drain_streams = function_of(
    KEEPING_GIL,
    "sharded_infer_transport_drain_streams",
    None,
    ctypes.c_void_p,
)
transport_stop_accepting = function_of(
    LIBRARY,
    "sharded_infer_transport_stop_accepting",
    None,
    ctypes.c_void_p,
)
transport_drain = function_of(
    KEEPING_GIL,
    "sharded_infer_transport_drain",
    None,
    ctypes.c_void_p,
    ctypes.c_double,
)
transport_stop = function_of(LIBRARY, "sharded_infer_transport_stop", None, ctypes.c_void_p)
transport_destroy = function_of(LIBRARY, "sharded_infer_transport_destroy", None, ctypes.c_void_p)
