"""C bindings of the compiled load generator (`native/`)."""

import ctypes

import numpy as np

from kernels.native_library import load_library


class LoadSettings(ctypes.Structure):
    """`Settings` of native/call.h."""

    _fields_ = (
        ("address", ctypes.c_char_p),
        ("port", ctypes.c_char_p),
        ("authority", ctypes.c_char_p),
        ("path", ctypes.c_char_p),
        ("user_agent", ctypes.c_char_p),
        ("messages", ctypes.c_char_p),
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


class LoadReport(ctypes.Structure):
    """`Report` of native/call.h."""

    _fields_ = (
        ("calls", ctypes.c_void_p),
        ("call_count", ctypes.c_int64),
        ("links", ctypes.c_void_p),
        ("seconds", ctypes.c_double),
    )


# `Call` and `Link` of native/call.h.
CALL = np.dtype(
    [
        ("scheduled", np.float64),
        ("taken", np.float64),
        ("sent", np.float64),
        ("latency", np.float64),
        ("message", np.int32),
        ("response_bytes", np.int32),
        ("slot", np.int32),
        ("code", np.uint8),
        ("refusals", np.uint8),
        ("done", np.uint8),
    ],
    align=True,
)
LINK = np.dtype([("calls", np.int64), ("reconnects", np.int64)])


def _load() -> ctypes.CDLL | None:
    library = load_library("serving.bench")
    if library is not None:
        library.sharded_infer_load_create.restype = ctypes.c_void_p
        library.sharded_infer_load_create.argtypes = (ctypes.POINTER(LoadSettings), ctypes.c_char_p)
        library.sharded_infer_load_step.restype = ctypes.c_int32
        library.sharded_infer_load_step.argtypes = (
            ctypes.c_void_p,
            ctypes.c_double,
            ctypes.c_char_p,
        )
        library.sharded_infer_load_report.restype = None
        library.sharded_infer_load_report.argtypes = (ctypes.c_void_p, ctypes.POINTER(LoadReport))
        library.sharded_infer_load_response.restype = ctypes.c_void_p
        library.sharded_infer_load_response.argtypes = (
            ctypes.c_void_p,
            ctypes.c_int64,
            ctypes.POINTER(ctypes.c_int64),
        )
        library.sharded_infer_load_error.restype = ctypes.c_char_p
        library.sharded_infer_load_error.argtypes = (ctypes.c_void_p, ctypes.c_int32)
        library.sharded_infer_load_destroy.restype = None
        library.sharded_infer_load_destroy.argtypes = (ctypes.c_void_p,)
    return library


LIBRARY = _load()


def load_generator_refusal() -> str | None:
    """Reason why the load generator cannot run here; None if it can."""
    if LIBRARY is None:
        return (
            "the load generator is compiled code that wheels leave out: install a checkout with a "
            "C++ compiler and SHARDED_INFER_BENCH=1, as `make setup` does"
        )
    try:
        ctypes.CDLL("libnghttp2.so.14")
    except OSError:
        return "the load generator needs libnghttp2.so.14: apt install libnghttp2-14"
    return None
