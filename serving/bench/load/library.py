"""C bindings of the compiled load generator (`native/`)."""

import ctypes

import numpy as np

from kernels.native_library import function_of, library_path, load_library


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


# Results and arguments of the functions of native/http2_load.cpp, after `sharded_infer_load_`.
_FUNCTIONS = {
    "create": (ctypes.c_void_p, ctypes.POINTER(LoadSettings), ctypes.c_char_p),
    "step": (ctypes.c_int32, ctypes.c_void_p, ctypes.c_double, ctypes.c_char_p),
    "report": (None, ctypes.c_void_p, ctypes.POINTER(LoadReport)),
    "response": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.POINTER(ctypes.c_int64)),
    "error": (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int32),
    "destroy": (None, ctypes.c_void_p),
}


def _load() -> ctypes.CDLL | None:
    if library_path("serving.bench") is None:
        return None
    library = load_library("serving.bench")
    for name, types in _FUNCTIONS.items():
        function_of(library, f"sharded_infer_load_{name}", *types)
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
