"""Bindings of predict calls (`native/call/structures.h`, `native/call/binding.cpp`)."""

import ctypes
from functools import cache

from kernels.native_library import keeping_gil, load_library
from serving.protocol.native_library import Layout, Model

_INTEGER, _SECONDS, _ADDRESS = ctypes.c_int64, ctypes.c_double, ctypes.c_void_p
_NUMBER = ctypes.c_uint64


class RouteSettings(ctypes.Structure):
    """`RouteSettings`."""

    _fields_ = (
        ("model", ctypes.POINTER(Model)),
        ("queue", _ADDRESS),
        ("name", ctypes.c_char_p),
        ("version", _INTEGER),
        ("outputs", ctypes.POINTER(ctypes.c_char_p)),
        ("output_count", _INTEGER),
        ("mapped_tables", ctypes.POINTER(ctypes.c_char_p)),
        ("reads_messages", _INTEGER),
    )


class NamedRoute(ctypes.Structure):
    """`NamedRoute`."""

    _fields_ = (("model", ctypes.c_char_p), ("version", ctypes.c_char_p), ("route", _ADDRESS))


class WeightedRoute(ctypes.Structure):
    """`WeightedRoute`."""

    _fields_ = (
        ("model", ctypes.c_char_p),
        ("seed", _NUMBER),
        ("label", ctypes.c_char_p),
        ("label_hash", _NUMBER),
        ("weight", _NUMBER),
        ("route", _ADDRESS),
    )


class PlacedOutput(ctypes.Structure):
    """`PlacedOutput`."""

    _fields_ = (
        ("output", _INTEGER),
        ("region", _ADDRESS),
        ("region_bytes", _INTEGER),
        ("offset", _INTEGER),
        ("byte_size", _INTEGER),
    )


class GroupArrays(ctypes.Structure):
    """`GroupArrays`."""

    _fields_ = (
        ("lengths", _ADDRESS),
        ("values", _ADDRESS),
        ("weights", _ADDRESS),
        ("ids", _INTEGER),
    )


class CallFields(ctypes.Structure):
    """`CallFields`."""

    _fields_ = (
        ("route", _ADDRESS),
        ("number", _NUMBER),
        ("by_python", _INTEGER),
        ("form", _INTEGER),
        ("size_bytes", _INTEGER),
        ("priority", _INTEGER),
        ("arrived", _SECONDS),
        ("deadline", _SECONDS),
        ("outputs", ctypes.c_char_p),
        ("reports_unknown", _INTEGER),
        ("traced", _INTEGER),
        ("id", ctypes.c_char_p),
        ("id_bytes", _INTEGER),
        ("label", ctypes.c_char_p),
        ("label_bytes", _INTEGER),
        ("message", ctypes.c_char_p),
        ("message_bytes", _INTEGER),
        ("placed", ctypes.POINTER(PlacedOutput)),
        ("placed_count", _INTEGER),
        ("batch", _INTEGER),
        ("ids_outside", _INTEGER),
        ("gaps", _INTEGER),
        ("own", ctypes.c_char_p),
        ("groups", GroupArrays * 2),
        ("dense", ctypes.POINTER(_ADDRESS)),
        ("dense_rows", ctypes.POINTER(_INTEGER)),
        ("unknown", ctypes.POINTER(_INTEGER)),
    )


class OfferRefused(ctypes.Structure):
    """`OfferRefused`."""

    _fields_ = (("why", _INTEGER), ("wanted", _INTEGER), ("limit", _INTEGER), ("end", _SECONDS))


class EndedCalls(ctypes.Structure):
    """`EndedCalls`."""

    _fields_ = (
        ("route", _ADDRESS),
        ("late", _INTEGER),
        ("late_seconds", _SECONDS),
        ("cancelled", _INTEGER),
        ("cancelled_seconds", _SECONDS),
    )


class TracedCall(ctypes.Structure):
    """`TracedCall`."""

    _fields_ = (("trace", _INTEGER), ("event", _INTEGER), ("drawn", _INTEGER))


class Taken(ctypes.Structure):
    """`Taken`."""

    _fields_ = (
        ("queued", _INTEGER),
        ("left", ctypes.POINTER(_INTEGER)),
        ("left_count", _INTEGER),
        ("routes", ctypes.POINTER(EndedCalls)),
        ("route_count", _INTEGER),
        ("traced", ctypes.POINTER(TracedCall)),
        ("traced_count", _INTEGER),
    )


class BatchInfo(ctypes.Structure):
    """`BatchInfo`."""

    _fields_ = (
        ("next", _ADDRESS),
        ("route", _ADDRESS),
        ("state", _INTEGER),
        ("calls", _INTEGER),
        ("samples", _INTEGER),
        ("work", _INTEGER),
        ("started", _SECONDS),
        ("predicted", _SECONDS),
        ("deadline", _SECONDS),
        ("traced", _INTEGER),
        ("by_python", _INTEGER),
        ("kept", _INTEGER),
        ("placed", _INTEGER),
        ("layout", Layout),
        ("words", _ADDRESS),
        ("own", _ADDRESS),
        ("dense_at", ctypes.POINTER(_INTEGER)),
        ("dense_rows", ctypes.POINTER(_INTEGER)),
        ("sizes", _ADDRESS),
    )


class CallInfo(ctypes.Structure):
    """`CallInfo`."""

    _fields_ = (
        ("number", _NUMBER),
        ("by_python", _INTEGER),
        ("form", _INTEGER),
        ("trace", _INTEGER),
        ("samples", _INTEGER),
        ("work", _INTEGER),
        ("ahead", _INTEGER),
        ("arrived", _SECONDS),
        ("deadline", _SECONDS),
        ("decoded", _SECONDS),
        ("id", _ADDRESS),
        ("id_bytes", _INTEGER),
        ("message", _ADDRESS),
        ("message_bytes", _INTEGER),
        ("placed", ctypes.POINTER(PlacedOutput)),
        ("placed_count", _INTEGER),
    )


class Begun(ctypes.Structure):
    """`Begun`."""

    _fields_ = (("batch", _ADDRESS), ("dropped", _ADDRESS), ("more", _INTEGER))


class Scores(ctypes.Structure):
    """`Scores`."""

    _fields_ = (("values", _ADDRESS), ("columns", _INTEGER))


class TableCounts(ctypes.Structure):
    """`TableCounts`."""

    _fields_ = (("table", ctypes.c_char_p), ("samples", _ADDRESS))


class BatchScores(ctypes.Structure):
    """`BatchScores`."""

    _fields_ = (
        ("scores", ctypes.POINTER(Scores)),
        ("lookup_seconds", _SECONDS),
        ("tower_seconds", _SECONDS),
        ("defaults", ctypes.POINTER(TableCounts)),
        ("default_count", _INTEGER),
        ("unknown", ctypes.POINTER(TableCounts)),
        ("unknown_count", _INTEGER),
        ("cells", _ADDRESS),
        ("counted", _ADDRESS),
        ("now", _SECONDS),
    )


class PythonAnswer(ctypes.Structure):
    """`PythonAnswer`."""

    _fields_ = (
        ("number", _NUMBER),
        ("data", _ADDRESS),
        ("bytes", _INTEGER),
        ("json_bytes", _INTEGER),
    )


class AnsweredRequest(ctypes.Structure):
    """`AnsweredRequest` of native/base/counting.h."""

    _fields_ = (("samples", _SECONDS), ("seconds", _SECONDS * 6), ("ids_outside", _SECONDS))


class Finished(ctypes.Structure):
    """`Finished`."""

    _fields_ = (
        ("decode_seconds", _SECONDS),
        ("encode_seconds", _SECONDS),
        ("slowest_seconds", _SECONDS),
        ("samples", _INTEGER),
        ("counted", ctypes.POINTER(AnsweredRequest)),
        ("answers", ctypes.POINTER(PythonAnswer)),
        ("answer_count", _INTEGER),
    )


class Failed(ctypes.Structure):
    """`Failed`."""

    _fields_ = (
        ("seconds", _SECONDS),
        ("answers", ctypes.POINTER(PythonAnswer)),
        ("answer_count", _INTEGER),
    )


# Result and arguments of each function.
_FUNCTIONS = {
    "route": (_ADDRESS, (ctypes.POINTER(RouteSettings),)),
    "route_calls": (_INTEGER, (_ADDRESS,)),
    "route_destroy": (None, (_ADDRESS,)),
    "create": (_ADDRESS, (_ADDRESS,)),
    "destroy": (None, (_ADDRESS,)),
    "attach": (None, (_ADDRESS, _ADDRESS, _ADDRESS, _ADDRESS, _ADDRESS, _INTEGER)),
    "set_traced": (None, (_ADDRESS, _INTEGER, _NUMBER)),
    "set_names": (None, (_ADDRESS, _ADDRESS, _INTEGER, _ADDRESS, _INTEGER)),
    "set_chance": (None, (_ADDRESS, _NUMBER)),
    "set_kept": (None, (_ADDRESS, _NUMBER)),
    "take": (None, (_ADDRESS, _ADDRESS, _INTEGER, ctypes.POINTER(Taken))),
    "offer": (
        ctypes.c_int32,
        (_ADDRESS, ctypes.POINTER(CallFields), _SECONDS, ctypes.POINTER(OfferRefused)),
    ),
    "cancel": (_ADDRESS, (_ADDRESS, _NUMBER, ctypes.c_int32)),
    "begin": (None, (_ADDRESS, _SECONDS, ctypes.POINTER(Begun))),
    "expire": (_ADDRESS, (_ADDRESS, _SECONDS)),
    "occupy": (_ADDRESS, (_ADDRESS, _ADDRESS, _SECONDS)),
    "finish": (
        None,
        (_ADDRESS, _ADDRESS, ctypes.POINTER(BatchScores), ctypes.POINTER(Finished)),
    ),
    "part": (_ADDRESS, (_ADDRESS, _ADDRESS, _ADDRESS, _INTEGER)),
    "fail": (
        None,
        (
            _ADDRESS,
            _ADDRESS,
            ctypes.c_int32,
            ctypes.c_char_p,
            _INTEGER,
            ctypes.POINTER(Failed),
        ),
    ),
    "end": (None, (_ADDRESS, _ADDRESS, _SECONDS, ctypes.c_int32)),
    "refuse": (
        None,
        (_ADDRESS, _ADDRESS, _INTEGER, ctypes.c_int32, ctypes.c_char_p, _INTEGER),
    ),
    "describe": (None, (_ADDRESS, _INTEGER, ctypes.POINTER(CallInfo))),
}


@cache
def calls_library() -> ctypes.PyDLL:
    """The library; its calls keep the GIL, which guards the compiled calls."""
    library = keeping_gil(load_library("serving"))
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, f"sharded_infer_calls_{name}")
        function.restype, function.argtypes = result, arguments
    return library
