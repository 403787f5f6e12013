"""Messages of lookups that compiled code writes, if it was built.

Its source is `serving/native/lookups/write_lookup.cpp`.
"""

import ctypes
import sys
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kernels.native_library import address_of, keeping_gil, load_library
from serving.protocol.lookups.version_key import VersionKey
from sharded_infer.lookups.shard_hosts import PieceBags

_NUMBER, _ADDRESS = ctypes.c_int64, ctypes.c_void_p
# Ids above which writing takes a tenth of a millisecond: other threads may run meanwhile.
_MANY = 1 << 16


class _Named(ctypes.Structure):
    """`Named` of serving/native/lookups/write_lookup.h."""

    _fields_ = (
        ("model", ctypes.c_char_p),
        ("version", ctypes.c_uint64),
        ("manifest", ctypes.c_uint64),
        ("share", ctypes.c_uint64),
    )


class _PieceBags(ctypes.Structure):
    """`PieceBags` of serving/native/lookups/write_lookup.h."""

    _fields_ = (
        ("pieces", _ADDRESS),
        ("lengths", _ADDRESS),
        ("ids", _ADDRESS),
        ("weights", _ADDRESS),
        ("entries", _NUMBER),
        ("bags", _NUMBER),
        ("id_count", _NUMBER),
    )


def _load() -> tuple[ctypes.CDLL, ctypes.CDLL] | None:
    """The library called without the GIL, and with it; None where it cannot write."""
    library = load_library("serving") if sys.byteorder == "little" else None
    if library is None:
        return None
    both = library, keeping_gil(library)
    arguments = ctypes.POINTER(_Named), ctypes.POINTER(_PieceBags), _NUMBER
    for one in both:
        one.sharded_infer_lookup_most_bytes.restype = _NUMBER
        one.sharded_infer_lookup_most_bytes.argtypes = arguments
        one.sharded_infer_lookup_write.restype = _NUMBER
        one.sharded_infer_lookup_write.argtypes = (*arguments, _ADDRESS)
    return both


_LIBRARIES = _load()


def compiled_lookup(
    key: VersionKey, groups: Sequence[PieceBags], share: int
) -> NDArray[np.uint8] | None:
    """A serialized LookupRequest; None where it was not built."""
    if _LIBRARIES is None:
        return None
    named = _Named(key.model.encode(), key.version, key.manifest, share)
    listed = (_PieceBags * len(groups))()
    # Until the message is written.
    kept = []
    for to, group in zip(listed, groups, strict=True):
        values, lengths = group.bags.values.contiguous(), group.bags.lengths.contiguous()
        weights = None if group.bags.weights is None else group.bags.weights.contiguous()
        kept.append((values, lengths, weights))
        to.pieces, to.lengths, to.ids = (
            address_of(group.pieces),
            lengths.data_ptr(),
            values.data_ptr(),
        )
        to.weights = None if weights is None else weights.data_ptr()
        to.entries, to.bags = lengths.shape
        to.id_count = values.shape[0]
    library = _LIBRARIES[sum(to.id_count for to in listed) < _MANY]
    message = np.empty(
        library.sharded_infer_lookup_most_bytes(named, listed, len(groups)), np.uint8
    )
    size = library.sharded_infer_lookup_write(named, listed, len(groups), address_of(message))
    return message[:size]
