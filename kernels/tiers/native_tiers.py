"""The C interface of tiers and their lookups (native/tiers/binding.cpp)."""

import ctypes

from kernels.native_library import function_of, load_library
from kernels.row_overlay import OverlayFields

_NUMBER, _ADDRESS = ctypes.c_int64, ctypes.c_void_p
# `Missing` of row_tier.h.
THERE, LATE, REFUSED, FAILED = range(4)


class TierSettings(ctypes.Structure):
    """`TierSettings` of native/tiers/row_tier.h."""

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
    """`MissingRow` of native/tiers/row_tier.h."""

    _fields_ = (
        ("why", ctypes.c_int32),
        ("error", ctypes.c_int32),
        ("tier", _NUMBER),
        ("row", _NUMBER),
        ("count", _NUMBER),
    )


_LIBRARY = load_library("kernels")
_TIER = _LOOKUP = _ADDRESS

open_tier = function_of(_LIBRARY, "sharded_infer_tier_open", _ADDRESS, ctypes.POINTER(TierSettings))
close_tier = function_of(_LIBRARY, "sharded_infer_tier_close", None, _TIER)
load_rows = function_of(
    _LIBRARY, "sharded_infer_tier_load", ctypes.c_int32, _TIER, _NUMBER, _NUMBER
)
read_counts = function_of(_LIBRARY, "sharded_infer_tier_counts", None, _TIER, _ADDRESS)
new_lookup = function_of(_LIBRARY, "sharded_infer_tier_lookup", _LOOKUP)
find_rows = function_of(
    _LIBRARY,
    "sharded_infer_tier_find",
    None,
    *(_LOOKUP, _TIER, _NUMBER, ctypes.POINTER(OverlayFields)),
    *(_ADDRESS, _NUMBER, _ADDRESS),
)
submit_lookup = function_of(_LIBRARY, "sharded_infer_tier_submit", None, _LOOKUP)
wait_for_lookup = function_of(
    _LIBRARY, "sharded_infer_tier_wait", None, _LOOKUP, ctypes.c_double, ctypes.POINTER(MissingRow)
)
release_lookup = function_of(_LIBRARY, "sharded_infer_tier_release", None, _LOOKUP)
_queued = function_of(_LIBRARY, "sharded_infer_tier_queued", _NUMBER)
_reader = function_of(_LIBRARY, "sharded_infer_tier_reader", ctypes.c_char_p)


def queued_reads() -> int:
    """Reads of this process that wait or are with the kernel."""
    return int(_queued())


def reader_name() -> str:
    """Mechanism of this process's reads: `io_uring`, or `threads` where it is not allowed."""
    name: bytes = _reader()
    return name.decode()
