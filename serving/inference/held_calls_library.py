"""Bindings of held calls (`native/call/`)."""

import ctypes
from functools import cache

from kernels.native_library import keeping_gil, load_library
from serving.protocol.native_library import Model

# Bits of an integer, one for each output.
MOST_OUTPUTS = 64
_INTEGER, _SECONDS, _ADDRESS = ctypes.c_int64, ctypes.c_double, ctypes.c_void_p
# `Layout`: batch, words, ids_outside, at_once, and seven numbers of each group.
Layout = _INTEGER * 18


class RouteStruct(ctypes.Structure):
    """`RouteSettings`."""

    _fields_ = (
        ("model", ctypes.POINTER(Model)),
        ("queue", _ADDRESS),
        ("name", ctypes.c_char_p),
        ("version", _INTEGER),
        ("outputs", ctypes.POINTER(ctypes.c_char_p)),
        ("output_count", _INTEGER),
    )


class NameStruct(ctypes.Structure):
    """`Name`."""

    _fields_ = (("model", ctypes.c_char_p), ("version", ctypes.c_char_p), ("route", _ADDRESS))


class ShareStruct(ctypes.Structure):
    """`NamedShare`."""

    _fields_ = (
        ("model", ctypes.c_char_p),
        ("seed", ctypes.c_uint64),
        ("label", ctypes.c_char_p),
        ("hash", ctypes.c_uint64),
        ("weight", ctypes.c_uint64),
        ("route", _ADDRESS),
    )


class EndedStruct(ctypes.Structure):
    """`Ended`."""

    _fields_ = (
        ("late", _INTEGER),
        ("late_seconds", _SECONDS),
        ("cancelled", _INTEGER),
        ("cancelled_seconds", _SECONDS),
    )


class TakenStruct(ctypes.Structure):
    """`Taken`."""

    _fields_ = (
        ("calls", _INTEGER),
        ("ended", _INTEGER),
        ("routes", _INTEGER),
        ("touched", _ADDRESS * 8),
        ("of_route", EndedStruct * 8),
    )


class ScoresStruct(ctypes.Structure):
    """`Scores`."""

    _fields_ = (("values", _ADDRESS), ("columns", _INTEGER))


class RunStruct(ctypes.Structure):
    """`Run`."""

    _fields_ = (
        ("started", _SECONDS),
        ("lookup_seconds", _SECONDS),
        ("tower_seconds", _SECONDS),
    )


class AnsweredStruct(ctypes.Structure):
    """`Answered`."""

    _fields_ = (
        ("decode_seconds", _SECONDS),
        ("encode_seconds", _SECONDS),
        ("slowest_seconds", _SECONDS),
    )


class DescriptionStruct(ctypes.Structure):
    """`Description`."""

    _fields_ = (
        ("route", _ADDRESS),
        ("call", ctypes.c_uint64),
        ("form", _INTEGER),
        ("samples", _INTEGER),
        ("size_bytes", _INTEGER),
        ("priority", _INTEGER),
        ("ahead", _INTEGER),
        ("arrived", _SECONDS),
        ("deadline", _SECONDS),
        ("decoded", _SECONDS),
        ("outputs", ctypes.c_uint64),
        ("id", _ADDRESS),
        ("id_bytes", _INTEGER),
        ("words", _ADDRESS),
        ("own", _ADDRESS),
        ("dense_at", _ADDRESS),
        ("dense_rows", _ADDRESS),
        ("label", ctypes.c_char_p),
        ("message", _ADDRESS),
        ("message_bytes", _INTEGER),
        ("layout", Layout),
    )


class KeptStruct(ctypes.Structure):
    """`Kept`."""

    _fields_ = (
        ("form", _INTEGER),
        ("first", _INTEGER),
        ("samples", _INTEGER),
        ("message", _ADDRESS),
        ("message_bytes", _INTEGER),
    )


# Result and arguments of each function of native/call/binding.cpp.
_FUNCTIONS = {
    "route": (_ADDRESS, (ctypes.POINTER(RouteStruct),)),
    "route_held": (_INTEGER, (_ADDRESS,)),
    "route_destroy": (None, (_ADDRESS,)),
    "create": (_ADDRESS, (_ADDRESS,)),
    "destroy": (None, (_ADDRESS,)),
    "attach": (
        None,
        (
            _ADDRESS, _ADDRESS, _ADDRESS, _ADDRESS, ctypes.POINTER(ctypes.c_int32), _INTEGER,
        ),
    ),
    "set_traced": (None, (_ADDRESS, ctypes.c_uint64)),
    "set_chance": (None, (_ADDRESS, ctypes.c_uint64)),
    "set_names": (
        None,
        (
            _ADDRESS, ctypes.POINTER(NameStruct), _INTEGER, ctypes.POINTER(ShareStruct), _INTEGER,
        ),
    ),
    "set_kept": (None, (_ADDRESS, ctypes.c_uint64)),
    "take": (
        _INTEGER,
        (_ADDRESS, _ADDRESS, _INTEGER, _ADDRESS, ctypes.POINTER(TakenStruct)),
    ),
    "cancel": (_INTEGER, (_ADDRESS, ctypes.c_uint64)),
    "deadline": (_SECONDS, (_ADDRESS, _ADDRESS, _INTEGER)),
    "lay_out": (
        ctypes.c_int32,
        (_ADDRESS, _ADDRESS, _INTEGER, ctypes.POINTER(Layout), _ADDRESS),
    ),
    "merge": (
        None,
        (_ADDRESS, _ADDRESS, _INTEGER, ctypes.POINTER(Layout), _ADDRESS, _ADDRESS, _ADDRESS),
    ),
    "answer": (
        _ADDRESS,
        (
            _ADDRESS, _ADDRESS, _INTEGER, ctypes.POINTER(ScoresStruct),
            ctypes.POINTER(RunStruct), _ADDRESS, ctypes.POINTER(AnsweredStruct),
        ),
    ),
    "send": (None, (_ADDRESS, _ADDRESS, _ADDRESS)),
    "refuse": (
        _SECONDS,
        (_ADDRESS, _ADDRESS, _INTEGER, ctypes.c_int32, ctypes.c_char_p, _INTEGER),
    ),
    "route_of": (_ADDRESS, (_ADDRESS, _INTEGER)),
    "kept": (_INTEGER, (_ADDRESS, _ADDRESS, _INTEGER, _ADDRESS)),
    "describe": (None, (_ADDRESS, _INTEGER, ctypes.POINTER(DescriptionStruct))),
    "release": (None, (_ADDRESS, _ADDRESS, _INTEGER)),
}  # fmt: skip


@cache
def held_calls_library() -> ctypes.PyDLL:
    """Functions of held calls, without their prefix. They keep the GIL, as they are short.

    Raises:
        InternalError: the package was built without a compiler.
    """
    held = keeping_gil(load_library("serving"))
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(held, f"sharded_infer_calls_{name}")
        function.restype, function.argtypes = result, arguments
    return held
