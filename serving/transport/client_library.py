"""C bindings of the compiled client (`native/client/settings.h`)."""

import ctypes
from functools import cache

from serving.transport.library import transport_library


class EndpointStruct(ctypes.Structure):
    """`EndpointSettings`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("host", ctypes.c_char_p),
        ("port", ctypes.c_char_p),
        ("authority", ctypes.c_char_p),
        ("server_name", ctypes.c_char_p),
    )


class SettingsStruct(ctypes.Structure):
    """`Settings`."""

    _fields_ = (
        ("endpoints", ctypes.POINTER(EndpointStruct)),
        ("endpoint_count", ctypes.c_int32),
        ("paths", ctypes.POINTER(ctypes.c_char_p)),
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


class OutgoingStruct(ctypes.Structure):
    """`Outgoing`."""

    _fields_ = (
        ("message", ctypes.c_void_p),
        ("bytes", ctypes.c_int64),
        ("traceparent", ctypes.c_char_p),
        ("timeout", ctypes.c_double),
        ("endpoint", ctypes.c_int32),
        ("path", ctypes.c_int32),
        ("may_repeat", ctypes.c_int32),
    )


class EndedStruct(ctypes.Structure):
    """`Ended`."""

    _fields_ = (
        ("message", ctypes.c_void_p),
        ("bytes", ctypes.c_int64),
        ("words", ctypes.c_void_p),
        ("words_bytes", ctypes.c_int64),
        ("code", ctypes.c_int32),
    )


class ClientLibrary:
    """Functions of the compiled client; `waiting` releases the GIL in each call."""

    def __init__(self, waiting: ctypes.CDLL, short: ctypes.PyDLL) -> None:
        self.waiting, self.short = waiting, short
        for library in (waiting, short):
            _declare(library)


def _declare(library: ctypes.CDLL) -> None:
    client, number = ctypes.c_void_p, ctypes.c_int32
    declared = {
        "make": (client, (ctypes.POINTER(SettingsStruct), ctypes.c_char_p, ctypes.c_int64)),
        "start": (None, (client, ctypes.POINTER(OutgoingStruct), number)),
        "wait": (
            number,
            (client, ctypes.c_double, number, ctypes.POINTER(ctypes.c_int32), number),
        ),
        "cancel": (None, (client, number)),
        "results": (None, (client, number, number, ctypes.POINTER(EndedStruct))),
        "give_back": (None, (client, ctypes.c_void_p)),
        "clear": (None, (client,)),
        "destroy": (None, (client,)),
    }
    for name, (result, arguments) in declared.items():
        function = getattr(library, f"sharded_infer_client_{name}")
        function.restype, function.argtypes = result, arguments


@cache
def client_library() -> ClientLibrary:
    """The compiled client. Raises InputError if it was not built, or a library is missing."""
    library = transport_library()
    return ClientLibrary(library.waiting, library.short)
