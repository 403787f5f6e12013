"""Bindings of the compiled scheduler (`native/scheduler/`)."""

import ctypes

from kernels.native_library import keeping_gil, load_library


class Sums(ctypes.Structure):
    """`Sums` of native/scheduler/order.h."""

    _fields_ = (
        ("requests", ctypes.c_int64),
        ("samples", ctypes.c_int64),
        ("alone_ns", ctypes.c_int64),
    )


class Counters(ctypes.Structure):
    """`Counters` of native/scheduler/decision.h."""

    _fields_ = (
        ("requests", ctypes.c_int64),
        ("samples", ctypes.c_int64),
        ("size_bytes", ctypes.c_int64),
        ("slots", ctypes.c_int64),
        ("running", ctypes.c_int64),
    )


_INTEGER, _SECONDS, _ADDRESS = ctypes.c_int64, ctypes.c_double, ctypes.c_void_p
# Result and arguments of each function of native/scheduler/binding.cpp.
_FUNCTIONS = {
    "queue_create": (
        _ADDRESS,
        (_INTEGER, _INTEGER, _SECONDS, _INTEGER, _ADDRESS, _ADDRESS, _INTEGER),
    ),
    "queue_destroy": (None, (_ADDRESS,)),
    "queue_sums": (_ADDRESS, (_ADDRESS,)),
    "queue_due": (_SECONDS, (_ADDRESS, _SECONDS)),
    "queue_oldest_arrival": (_SECONDS, (_ADDRESS,)),
    "queue_saw": (None, (_ADDRESS, _INTEGER)),
    "queue_predicted": (_SECONDS, (_ADDRESS, _INTEGER)),
    "queue_is_stale": (_INTEGER, (_ADDRESS, _INTEGER, _SECONDS)),
    "queue_observe": (None, (_ADDRESS, _INTEGER, _SECONDS, _SECONDS, _SECONDS)),
    "scheduler_create": (_ADDRESS, (_INTEGER, _INTEGER, _INTEGER, _INTEGER)),
    "scheduler_destroy": (None, (_ADDRESS,)),
    "scheduler_counters": (_ADDRESS, (_ADDRESS,)),
    "scheduler_add_queue": (None, (_ADDRESS, _ADDRESS)),
    "scheduler_remove_queue": (None, (_ADDRESS, _ADDRESS)),
    "scheduler_deadline_unreachable": (
        _INTEGER,
        (_ADDRESS, _ADDRESS, _SECONDS, _INTEGER, _SECONDS),
    ),
    "scheduler_backlog": (_SECONDS, (_ADDRESS, _SECONDS)),
    "scheduler_urgent_lead": (_SECONDS, (_ADDRESS, _SECONDS)),
    "scheduler_linger_seconds": (_SECONDS, (_ADDRESS, _SECONDS)),
    "scheduler_due": (_SECONDS, (_ADDRESS, _SECONDS)),
}


def _load() -> ctypes.PyDLL:
    scheduler = keeping_gil(load_library("serving"))
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(scheduler, f"sharded_infer_{name}")
        function.restype, function.argtypes = result, arguments
    return scheduler


# Calls keep the GIL, as they are short.
LIBRARY = _load()
