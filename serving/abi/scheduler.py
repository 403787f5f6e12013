"""native/abi/scheduler.h; written by native/abi/generate.py."""

import ctypes
from enum import IntEnum

from kernels.native_library import check_layout, function_of
from serving.abi import KEEPING_GIL, LIBRARY


class Mode(IntEnum):
    INLINE = 0
    BATCHED = 1
    AUTO = 2


class State(IntEnum):
    NEW = 0
    WAITING = 1
    RUNNING = 2
    EXPIRED = 3
    INFEASIBLE = 4
    CANCELLED = 5


class Refusal(IntEnum):
    NONE = 0
    DEADLINE_PASSED = 1
    DEADLINE_UNREACHABLE = 2
    MANY_REQUESTS = 3
    MANY_SAMPLES = 4
    MANY_BYTES = 5


class Refused(ctypes.Structure):
    _fields_ = (
        ("why", ctypes.c_int64),
        ("wanted", ctypes.c_int64),
        ("limit", ctypes.c_int64),
        ("end", ctypes.c_double),
    )


class Sums(ctypes.Structure):
    _fields_ = (
        ("requests", ctypes.c_int64),
        ("samples", ctypes.c_int64),
        ("alone_ns", ctypes.c_int64),
    )


class Counters(ctypes.Structure):
    _fields_ = (
        ("requests", ctypes.c_int64),
        ("samples", ctypes.c_int64),
        ("size_bytes", ctypes.c_int64),
        ("slots", ctypes.c_int64),
        ("running", ctypes.c_int64),
    )


check_layout(LIBRARY, "scheduler", 0xB6806ED3, {
    Refused: 0xDFCCD9E9,
    Sums: 0xFCC7C975,
    Counters: 0x81F8AE3F,
})
queue_create = function_of(
    KEEPING_GIL,
    "sharded_infer_queue_create",
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_int64,
    ctypes.c_double,
    ctypes.c_int64,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int64,
)
queue_destroy = function_of(KEEPING_GIL, "sharded_infer_queue_destroy", None, ctypes.c_void_p)
queue_sums = function_of(
    KEEPING_GIL,
    "sharded_infer_queue_sums",
    ctypes.POINTER(Sums),
    ctypes.c_void_p,
)
queue_due = function_of(
    KEEPING_GIL,
    "sharded_infer_queue_due",
    ctypes.c_double,
    ctypes.c_void_p,
    ctypes.c_double,
)
queue_oldest_arrival = function_of(
    KEEPING_GIL,
    "sharded_infer_queue_oldest_arrival",
    ctypes.c_double,
    ctypes.c_void_p,
)
queue_saw = function_of(
    KEEPING_GIL,
    "sharded_infer_queue_saw",
    None,
    ctypes.c_void_p,
    ctypes.c_int64,
)
queue_predicted = function_of(
    KEEPING_GIL,
    "sharded_infer_queue_predicted",
    ctypes.c_double,
    ctypes.c_void_p,
    ctypes.c_int64,
)
queue_is_stale = function_of(
    KEEPING_GIL,
    "sharded_infer_queue_is_stale",
    ctypes.c_bool,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_double,
)
queue_observe = function_of(
    KEEPING_GIL,
    "sharded_infer_queue_observe",
    None,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_double,
    ctypes.c_double,
    ctypes.c_double,
)
scheduler_create = function_of(
    KEEPING_GIL,
    "sharded_infer_scheduler_create",
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_int64,
    ctypes.c_int64,
    ctypes.c_int64,
)
scheduler_destroy = function_of(
    KEEPING_GIL,
    "sharded_infer_scheduler_destroy",
    None,
    ctypes.c_void_p,
)
scheduler_counters = function_of(
    KEEPING_GIL,
    "sharded_infer_scheduler_counters",
    ctypes.POINTER(Counters),
    ctypes.c_void_p,
)
scheduler_add_queue = function_of(
    KEEPING_GIL,
    "sharded_infer_scheduler_add_queue",
    None,
    ctypes.c_void_p,
    ctypes.c_void_p,
)
scheduler_remove_queue = function_of(
    KEEPING_GIL,
    "sharded_infer_scheduler_remove_queue",
    None,
    ctypes.c_void_p,
    ctypes.c_void_p,
)
scheduler_deadline_unreachable = function_of(
    KEEPING_GIL,
    "sharded_infer_scheduler_deadline_unreachable",
    ctypes.c_bool,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_double,
    ctypes.c_int64,
    ctypes.c_double,
)
scheduler_backlog = function_of(
    KEEPING_GIL,
    "sharded_infer_scheduler_backlog",
    ctypes.c_double,
    ctypes.c_void_p,
    ctypes.c_double,
)
scheduler_urgent_lead = function_of(
    KEEPING_GIL,
    "sharded_infer_scheduler_urgent_lead",
    ctypes.c_double,
    ctypes.c_void_p,
    ctypes.c_double,
)
scheduler_linger_seconds = function_of(
    KEEPING_GIL,
    "sharded_infer_scheduler_linger_seconds",
    ctypes.c_double,
    ctypes.c_void_p,
    ctypes.c_double,
)
scheduler_due = function_of(
    KEEPING_GIL,
    "sharded_infer_scheduler_due",
    ctypes.c_double,
    ctypes.c_void_p,
    ctypes.c_double,
)
