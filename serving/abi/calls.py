"""native/abi/calls.h; written by native/abi/generate.py."""

import ctypes
from enum import IntEnum

from kernels.native_library import check_layout, function_of
from serving.abi import KEEPING_GIL, LIBRARY
from serving.abi.reader import InputParts
from serving.abi.scheduler import Refused


class Form(IntEnum):
    NO_FORM = 0
    INFER = 1
    PREDICT = 2
    STREAM = 3
    JSON = 4


class Sender(IntEnum):
    GRPC = 0
    HTTP = 1


class RouteSettings(ctypes.Structure):
    _fields_ = (
        ("model", ctypes.c_void_p),
        ("queue", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("version", ctypes.c_int64),
        ("outputs", ctypes.c_void_p),
        ("output_count", ctypes.c_int64),
        ("mapped_tables", ctypes.c_void_p),
        ("refuses_non_finite", ctypes.c_int64),
    )


class NamedRoute(ctypes.Structure):
    _fields_ = (
        ("model", ctypes.c_char_p),
        ("version", ctypes.c_char_p),
        ("route", ctypes.c_void_p),
    )


class WeightedRoute(ctypes.Structure):
    _fields_ = (
        ("model", ctypes.c_char_p),
        ("seed", ctypes.c_uint64),
        ("label", ctypes.c_char_p),
        ("label_hash", ctypes.c_uint64),
        ("weight", ctypes.c_uint64),
        ("route", ctypes.c_void_p),
    )


class PlacedOutput(ctypes.Structure):
    _fields_ = (
        ("output", ctypes.c_int64),
        ("region", ctypes.c_void_p),
        ("region_bytes", ctypes.c_int64),
        ("offset", ctypes.c_int64),
        ("byte_size", ctypes.c_int64),
    )


class ReadCall(ctypes.Structure):
    _fields_ = (
        ("route", ctypes.c_void_p),
        ("sender", ctypes.c_int32),
        ("number", ctypes.c_uint64),
        ("form", ctypes.c_int32),
        ("encoding", ctypes.c_int64),
        ("size_bytes", ctypes.c_int64),
        ("priority", ctypes.c_int64),
        ("arrived", ctypes.c_double),
        ("deadline", ctypes.c_double),
        ("outputs", ctypes.c_char_p),
        ("reports_unknown", ctypes.c_int64),
        ("trace", ctypes.c_int64),
        ("id", ctypes.c_char_p),
        ("id_bytes", ctypes.c_int64),
        ("label", ctypes.c_char_p),
        ("label_bytes", ctypes.c_int64),
        ("placed", ctypes.c_void_p),
        ("placed_count", ctypes.c_int64),
        ("message", ctypes.c_char_p),
        ("message_bytes", ctypes.c_int64),
        ("is_rewritten", ctypes.c_int64),
        ("kept", ctypes.c_char_p),
        ("kept_bytes", ctypes.c_int64),
        ("json_bytes", ctypes.c_int64),
        ("key", ctypes.c_char_p),
        ("key_bytes", ctypes.c_int64),
    )


class TakenRoute(ctypes.Structure):
    _fields_ = (
        ("route", ctypes.c_void_p),
        ("late", ctypes.c_int64),
        ("late_seconds", ctypes.c_double),
    )


class TracedCall(ctypes.Structure):
    _fields_ = (
        ("trace", ctypes.c_int64),
        ("event", ctypes.c_int64),
        ("drawn", ctypes.c_int64),
    )


class Taken(ctypes.Structure):
    _fields_ = (
        ("queued", ctypes.c_int64),
        ("left", ctypes.c_void_p),
        ("left_count", ctypes.c_int64),
        ("routes", ctypes.c_void_p),
        ("route_count", ctypes.c_int64),
        ("traced", ctypes.c_void_p),
        ("traced_count", ctypes.c_int64),
        ("cancelled", ctypes.c_void_p),
        ("backlog", ctypes.c_double),
    )


class BatchInfo(ctypes.Structure):
    _fields_ = (
        ("next", ctypes.c_void_p),
        ("route", ctypes.c_void_p),
        ("state", ctypes.c_int64),
        ("calls", ctypes.c_int64),
        ("samples", ctypes.c_int64),
        ("work", ctypes.c_int64),
        ("started", ctypes.c_double),
        ("predicted", ctypes.c_double),
        ("deadline", ctypes.c_double),
        ("traced", ctypes.c_int64),
        ("kept", ctypes.c_int64),
        ("placed", ctypes.c_int64),
        ("input", InputParts),
        ("words", ctypes.c_void_p),
        ("sizes", ctypes.c_void_p),
    )


class CallInfo(ctypes.Structure):
    _fields_ = (
        ("number", ctypes.c_uint64),
        ("form", ctypes.c_int32),
        ("trace", ctypes.c_int64),
        ("samples", ctypes.c_int64),
        ("work", ctypes.c_int64),
        ("ahead", ctypes.c_int64),
        ("arrived", ctypes.c_double),
        ("deadline", ctypes.c_double),
        ("decoded", ctypes.c_double),
        ("id", ctypes.c_void_p),
        ("id_bytes", ctypes.c_int64),
        ("message", ctypes.c_void_p),
        ("message_bytes", ctypes.c_int64),
        ("json_bytes", ctypes.c_int64),
        ("placed", ctypes.c_void_p),
        ("placed_count", ctypes.c_int64),
    )


class Begun(ctypes.Structure):
    _fields_ = (
        ("batch", ctypes.c_void_p),
        ("dropped", ctypes.c_void_p),
        ("more", ctypes.c_int64),
    )


class Scores(ctypes.Structure):
    _fields_ = (
        ("values", ctypes.c_void_p),
        ("columns", ctypes.c_int64),
    )


class TableCounts(ctypes.Structure):
    _fields_ = (
        ("table", ctypes.c_char_p),
        ("samples", ctypes.c_void_p),
    )


class BatchScores(ctypes.Structure):
    _fields_ = (
        ("scores", ctypes.c_void_p),
        ("lookup_seconds", ctypes.c_double),
        ("tower_seconds", ctypes.c_double),
        ("defaults", ctypes.c_void_p),
        ("default_count", ctypes.c_int64),
        ("unknown", ctypes.c_void_p),
        ("unknown_count", ctypes.c_int64),
        ("cells", ctypes.c_void_p),
        ("counted", ctypes.c_void_p),
        ("now", ctypes.c_double),
    )


class LongAnswer(ctypes.Structure):
    _fields_ = (
        ("number", ctypes.c_uint64),
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_int64),
        ("json_bytes", ctypes.c_int64),
        ("encoding", ctypes.c_int64),
    )


class Finished(ctypes.Structure):
    _fields_ = (
        ("decode_seconds", ctypes.c_double),
        ("encode_seconds", ctypes.c_double),
        ("slowest_seconds", ctypes.c_double),
        ("samples", ctypes.c_int64),
        ("counted", ctypes.c_void_p),
        ("answers", ctypes.c_void_p),
        ("answer_count", ctypes.c_int64),
        ("failed", ctypes.c_void_p),
        ("failed_count", ctypes.c_int64),
    )


class BatchEnd(ctypes.Structure):
    _fields_ = (
        ("backlog", ctypes.c_double),
        ("waits", ctypes.c_int64),
    )


check_layout(LIBRARY, "calls", 0xEFA40E15, {
    RouteSettings: 0x28C83762,
    NamedRoute: 0x5E523BFE,
    WeightedRoute: 0x6E66263E,
    PlacedOutput: 0xDA6139FC,
    ReadCall: 0xB1B65F2F,
    TakenRoute: 0xD9E1C5A9,
    TracedCall: 0x614D68BB,
    Taken: 0xB1EEC225,
    BatchInfo: 0x0646F603,
    CallInfo: 0xB83526A0,
    Begun: 0x22286134,
    Scores: 0x37148436,
    TableCounts: 0x4D371771,
    BatchScores: 0x6452607B,
    LongAnswer: 0x27D93B39,
    Finished: 0xCC6CD585,
    BatchEnd: 0x706B7914,
})
calls_route = function_of(
    KEEPING_GIL,
    "sharded_infer_calls_route",
    ctypes.c_void_p,
    ctypes.POINTER(RouteSettings),
)
calls_route_calls = function_of(
    KEEPING_GIL,
    "sharded_infer_calls_route_calls",
    ctypes.c_int64,
    ctypes.c_void_p,
)
calls_route_destroy = function_of(
    KEEPING_GIL,
    "sharded_infer_calls_route_destroy",
    None,
    ctypes.c_void_p,
)
calls_create = function_of(
    KEEPING_GIL,
    "sharded_infer_calls_create",
    ctypes.c_void_p,
    ctypes.c_void_p,
)
calls_destroy = function_of(KEEPING_GIL, "sharded_infer_calls_destroy", None, ctypes.c_void_p)
calls_attach = function_of(
    KEEPING_GIL,
    "sharded_infer_calls_attach",
    None,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_int64,
)
calls_attach_http = function_of(
    KEEPING_GIL,
    "sharded_infer_calls_attach_http",
    None,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int64,
)
calls_set_traced = function_of(
    KEEPING_GIL,
    "sharded_infer_calls_set_traced",
    None,
    ctypes.c_void_p,
    ctypes.c_uint64,
)
calls_set_names = function_of(
    KEEPING_GIL,
    "sharded_infer_calls_set_names",
    None,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_void_p,
    ctypes.c_int64,
)
calls_set_chance = function_of(
    KEEPING_GIL,
    "sharded_infer_calls_set_chance",
    None,
    ctypes.c_void_p,
    ctypes.c_uint64,
)
calls_set_kept = function_of(
    KEEPING_GIL,
    "sharded_infer_calls_set_kept",
    None,
    ctypes.c_void_p,
    ctypes.c_uint64,
)
calls_set_regions = function_of(
    KEEPING_GIL,
    "sharded_infer_calls_set_regions",
    None,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_int64,
)
calls_take = function_of(
    KEEPING_GIL,
    "sharded_infer_calls_take",
    None,
    ctypes.c_void_p,
    ctypes.c_int32,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.POINTER(Taken),
)
calls_take_read = function_of(
    KEEPING_GIL,
    "sharded_infer_calls_take_read",
    ctypes.c_bool,
    ctypes.c_void_p,
    ctypes.POINTER(ReadCall),
    ctypes.c_double,
    ctypes.POINTER(Refused),
)
calls_begin = function_of(
    KEEPING_GIL,
    "sharded_infer_calls_begin",
    None,
    ctypes.c_void_p,
    ctypes.c_double,
    ctypes.POINTER(Begun),
)
calls_expire = function_of(
    KEEPING_GIL,
    "sharded_infer_calls_expire",
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_double,
)
calls_occupy = function_of(
    KEEPING_GIL,
    "sharded_infer_calls_occupy",
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_double,
)
calls_finish = function_of(
    KEEPING_GIL,
    "sharded_infer_calls_finish",
    None,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.POINTER(BatchScores),
    ctypes.POINTER(Finished),
)
calls_part = function_of(
    KEEPING_GIL,
    "sharded_infer_calls_part",
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int64,
)
calls_fail = function_of(
    KEEPING_GIL,
    "sharded_infer_calls_fail",
    ctypes.c_double,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int32,
    ctypes.c_char_p,
    ctypes.c_int64,
)
calls_end = function_of(
    KEEPING_GIL,
    "sharded_infer_calls_end",
    None,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_double,
    ctypes.c_bool,
    ctypes.POINTER(BatchEnd),
)
calls_refuse = function_of(
    KEEPING_GIL,
    "sharded_infer_calls_refuse",
    None,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_int32,
    ctypes.c_char_p,
    ctypes.c_int64,
)
calls_describe = function_of(
    KEEPING_GIL,
    "sharded_infer_calls_describe",
    None,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.POINTER(CallInfo),
)
