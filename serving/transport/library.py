"""C bindings of the compiled transport (`native/transport/settings.h`)."""

import ctypes
from functools import cache

import numpy as np

from kernels.native_library import keeping_gil, load_library
from sharded_infer.errors import InputError

ENCODINGS = ("identity", "gzip", "deflate")
_ERROR_BYTES = 512


class MethodStruct(ctypes.Structure):
    """`Method`."""

    _fields_ = (
        ("path", ctypes.c_char_p),
        ("kind", ctypes.c_int32),
        ("access", ctypes.c_int32),
        ("with_headers", ctypes.c_int32),
    )


class RouteStruct(ctypes.Structure):
    """`Route`."""

    _fields_ = (
        ("verb", ctypes.c_char_p),
        ("path", ctypes.c_char_p),
        ("access", ctypes.c_int32),
        ("is_probe", ctypes.c_int32),
        ("max_body", ctypes.c_int64),
    )


class TokenStruct(ctypes.Structure):
    """`Token`."""

    _fields_ = (
        ("digest", ctypes.c_uint8 * 32),
        ("scopes", ctypes.c_int32),
        ("name", ctypes.c_char_p),
    )


class SettingsStruct(ctypes.Structure):
    """`Settings`."""

    _fields_ = (
        ("listeners", ctypes.POINTER(ctypes.c_int32)),
        ("listener_count", ctypes.c_int32),
        ("methods", ctypes.POINTER(MethodStruct)),
        ("method_count", ctypes.c_int32),
        ("http_listeners", ctypes.POINTER(ctypes.c_int32)),
        ("http_listener_count", ctypes.c_int32),
        ("routes", ctypes.POINTER(RouteStruct)),
        ("route_count", ctypes.c_int32),
        ("http_answers_once", ctypes.c_int32),
        ("tokens", ctypes.POINTER(TokenStruct)),
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


class CountersStruct(ctypes.Structure):
    """`Counters`."""

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
        ("refused", ctypes.c_int64 * 17),
        ("refused_predict", ctypes.c_int64 * 17),
    )


# `Event`.
EVENT = np.dtype(
    [
        ("call", np.uint64),
        ("data", np.uintp),
        ("bytes", np.int64),
        ("headers", np.uintp),
        ("header_bytes", np.int64),
        ("seconds_left", np.float64),
        ("kind", np.int32),
        ("method", np.int32),
        ("encoding", np.int32),
        ("place", np.int32),
    ],
    align=True,
)


class TransportLibrary:
    """Functions of the compiled transport; `waiting` releases the GIL in each call.

    `short` keeps it, since switching takes longer than these calls.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self.waiting, self.short = library, keeping_gil(library)
        _declare(self.waiting)
        _declare(self.short)

    def refusal(self) -> str | None:
        """Why it cannot serve here; None if it can."""
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        version = self.waiting.sharded_infer_transport_http2_version(error, _ERROR_BYTES)
        if not version:
            return f"{error.value.decode()}: apt install libnghttp2-14, or your system's package"
        return None

    def http2_text(self) -> str:
        """Version and vendor of libnghttp2, which must exist."""
        number = self.waiting.sharded_infer_transport_http2_version(None, 0)
        version = ".".join(str(number >> shift & 0xFF) for shift in (16, 8, 0))
        is_linked = self.waiting.sharded_infer_transport_http2_is_linked()
        return f"libnghttp2 {version}, {_whose(is_linked)}"

    def tls_text(self) -> str | None:
        """Version and vendor of OpenSSL; None where it is missing."""
        text = ctypes.create_string_buffer(_ERROR_BYTES)
        if not self.waiting.sharded_infer_transport_tls_version(text, _ERROR_BYTES):
            return None
        is_linked = self.waiting.sharded_infer_transport_tls_is_linked()
        return f"{text.value.decode()}, {_whose(is_linked)}"


def _whose(is_linked: bool) -> str:
    return "built in" if is_linked else "of the system"


def _declare(library: ctypes.CDLL) -> None:
    server, text, size = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64
    declared = {
        "start": (server, (ctypes.POINTER(SettingsStruct), text, size)),
        "http2_version": (ctypes.c_int32, (text, size)),
        "http2_is_linked": (ctypes.c_int32, ()),
        "tls_version": (ctypes.c_int32, (text, size)),
        "tls_is_linked": (ctypes.c_int32, ()),
        "counters": (ctypes.POINTER(CountersStruct), (server,)),
        "fetch": (ctypes.c_int32, (server, server, *(ctypes.c_int32,) * 3)),
        "respond": (None, (server, ctypes.c_uint64, text, size, ctypes.c_int32)),
        "hold": (None, (server,)),
        "flush": (None, (server,)),
        "finish": (None, (server, ctypes.c_uint64, ctypes.c_int32, text, size, text, size)),
        "set_tokens": (ctypes.c_int32, (server, ctypes.POINTER(TokenStruct), ctypes.c_int32)),
        "set_fixed_answer": (None, (server, ctypes.c_int32, text, size, text, size)),
        "set_backlog": (None, (server, ctypes.c_double)),
        "set_urgent_lead": (None, (server, ctypes.c_double)),
        "respond_http": (None, (server, ctypes.c_uint64, text, size, text, size)),
        "respond_http_later": (ctypes.c_bool, (server, ctypes.c_uint64, text, size, text, size)),
        "stop_accepting": (None, (server,)),
        "drain": (None, (server, ctypes.c_double)),
        "stop": (None, (server,)),
        "destroy": (None, (server,)),
    }
    for name, (result, arguments) in declared.items():
        function = getattr(library, f"sharded_infer_transport_{name}")
        function.restype, function.argtypes = result, arguments


def transport_refusal() -> str | None:
    """Why the compiled transport cannot serve here; None if it can."""
    try:
        transport_library()
    except InputError as error:
        return str(error)
    return None


@cache
def transport_library() -> TransportLibrary:
    """The compiled transport. Raises InputError if it was not built, or a library is missing."""
    library = TransportLibrary(load_library("serving"))
    refusal = library.refusal()
    if refusal is not None:
        raise InputError(refusal)
    return library
