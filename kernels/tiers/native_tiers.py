"""The C interface of tiers and their lookups (kernels/native/tiers/binding.cpp)."""

import ctypes

from kernels.native_library import load_library
from kernels.row_overlay import OverlayFields

_NUMBER, _ADDRESS = ctypes.c_int64, ctypes.c_void_p
# `Missing` of row_tier.h.
THERE, LATE, REFUSED, FAILED = range(4)


class TierSettings(ctypes.Structure):
    """`TierSettings` of kernels/native/tiers/row_tier.h."""

    _fields_ = (
        ("descriptor", ctypes.c_int32),
        ("is_direct", ctypes.c_int32),
        ("offset", _NUMBER),
        ("row_bytes", _NUMBER),
        ("rows", _NUMBER),
        ("hot_rows", _NUMBER),
        ("cached_rows", _NUMBER),
    )


class MissingRow(ctypes.Structure):
    """`MissingRow` of kernels/native/tiers/row_tier.h."""

    _fields_ = (
        ("why", ctypes.c_int32),
        ("error", ctypes.c_int32),
        ("tier", _NUMBER),
        ("row", _NUMBER),
        ("count", _NUMBER),
    )


def _load() -> ctypes.CDLL:
    library = load_library("kernels")
    declared = {
        "open": (_ADDRESS, (ctypes.POINTER(TierSettings),)),
        "close": (None, (_ADDRESS,)),
        "load": (ctypes.c_int32, (_ADDRESS, _NUMBER, _NUMBER)),
        "counts": (None, (_ADDRESS, _ADDRESS)),
        "queued": (_NUMBER, ()),
        "reader": (ctypes.c_char_p, ()),
        "lookup": (_ADDRESS, ()),
        "find": (
            None,
            (
                *(_ADDRESS, _ADDRESS, _NUMBER, ctypes.POINTER(OverlayFields)),
                *(_ADDRESS, _NUMBER, _ADDRESS),
            ),
        ),
        "submit": (None, (_ADDRESS,)),
        "wait": (None, (_ADDRESS, ctypes.c_double, ctypes.POINTER(MissingRow))),
        "release": (None, (_ADDRESS,)),
    }
    for name, (result, arguments) in declared.items():
        function = getattr(library, f"sharded_infer_tier_{name}")
        function.restype, function.argtypes = result, arguments
    return library


_LIBRARY = _load()


def queued_reads() -> int:
    """Reads of this process that wait or are with the kernel."""
    return int(tier_library().sharded_infer_tier_queued())


def reader_name() -> str:
    """Mechanism of this process's reads: `io_uring`, or `threads` where it is not allowed."""
    name: bytes = tier_library().sharded_infer_tier_reader()
    return name.decode()


def tier_library() -> ctypes.CDLL:
    """The compiled code; raises InputError if there is none."""
    return _LIBRARY
