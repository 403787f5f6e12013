"""Lookups in compiled code, from message to answer, without the GIL.

Its source in `native/remote_lookup/` has the pseudocode. It leaves unusual lookups and errors to
Python (`LookupService`), its reference.
"""

import ctypes
from functools import cache

from kernels.abi.lookup import Feature
from kernels.backends.native import kernel_features, kernel_for_compiled_code
from kernels.native_library import load_library
from kernels.pooled_lookup import PooledLookup
from serving.metrics.families.shard_host_families import HOST_LOOKUP_SECONDS
from serving.protocol.lookups.version_key import VersionKey
from serving.protocol.readers.native_id_maps import NativeIdMaps
from serving.shard_host.lookup_counts import LookupCounts
from sharded_infer.lookups.share_lookups import ShareLookups

_NUMBER, _ADDRESS, _SECONDS = ctypes.c_int64, ctypes.c_void_p, ctypes.c_double
_NATIVE = "native"


class _Watch(ctypes.Structure):
    """`Watch` of native/remote_lookup/share.h."""

    _fields_ = (("lost", _ADDRESS), ("place", _ADDRESS), ("byte", ctypes.c_int32))


class _Piece(ctypes.Structure):
    """`Piece` of native/remote_lookup/share.h."""

    _fields_ = (
        ("rows", _ADDRESS),
        ("row_bytes", _NUMBER),
        ("row_count", _NUMBER),
        ("first_row", _NUMBER),
        ("columns", _NUMBER),
        ("format", ctypes.c_int32),
        ("mean", ctypes.c_int32),
        ("overlay", ctypes.c_void_p),
        ("watches", ctypes.POINTER(_Watch)),
        ("watch_count", _NUMBER),
        ("id_map", _ADDRESS),
    )


class _Share(ctypes.Structure):
    """`ShareSettings` of native/remote_lookup/share.h."""

    _fields_ = (
        ("model", ctypes.c_char_p),
        ("version", ctypes.c_uint64),
        ("manifest", ctypes.c_uint64),
        ("share", ctypes.c_uint64),
        ("pieces", ctypes.POINTER(_Piece)),
        ("piece_count", _NUMBER),
        ("most_entries", _NUMBER),
        ("most_answer_bytes", _NUMBER),
        ("run", _ADDRESS),
        ("instruction_set", ctypes.c_int32),
    )


@cache
def _library() -> ctypes.CDLL:
    library = load_library("serving")
    declared = {
        "create": (_ADDRESS, (ctypes.POINTER(_SECONDS), _NUMBER)),
        "add": (_ADDRESS, (_ADDRESS, ctypes.POINTER(_Share))),
        "drop": (None, (_ADDRESS, _ADDRESS)),
        "counted": (None, (_ADDRESS, ctypes.POINTER(_NUMBER))),
        "fetch": (
            ctypes.c_int32,
            (_ADDRESS, _ADDRESS, ctypes.c_int32, _ADDRESS, *(ctypes.c_int32,) * 2),
        ),
    }
    for name, (result, arguments) in declared.items():
        function = getattr(library, f"sharded_infer_shares_{name}")
        function.restype, function.argtypes = result, arguments
    return library


class CompiledLookups:
    """Shares for lookups in compiled code; thread-safe."""

    def __init__(self) -> None:
        """Hold no share yet. It is never freed: threads may answer until the process ends."""
        self._library = _library()
        boundaries = HOST_LOOKUP_SECONDS.boundaries
        self._address = self._library.sharded_infer_shares_create(
            (_SECONDS * len(boundaries))(*boundaries), len(boundaries)
        )
        # Memory of compiled code, by share: id maps, and the watches of pieces.
        self._kept: dict[int, tuple[NativeIdMaps, ctypes.Array[_Piece]]] = {}

    def counts(self) -> LookupCounts:
        """Counts of the lookups that bypass Python."""
        numbers = (_NUMBER * LookupCounts.LENGTH)()
        self._library.sharded_infer_shares_counted(self._address, numbers)
        rows, row_bytes, received, sent, nanoseconds, *buckets = numbers
        return LookupCounts(rows, row_bytes, received, sent, nanoseconds / 1e9, tuple(buckets))

    def add(self, key: VersionKey, lookups: ShareLookups, share: int = 0) -> int | None:
        """Answer lookups of a version, named by its share or 0, until `drop`; keep `lookups` alive.

        Returns the argument of `drop`; None if compiled code does not support the tables.
        """
        if any(piece.backend != _NATIVE or piece.tables.tiers for piece in lookups.pieces):
            return None
        kernel = kernel_for_compiled_code()
        pieces = (_Piece * len(lookups.pieces))()
        id_maps = {one.table.name: one for one in lookups.id_maps if one is not None}
        maps = NativeIdMaps(lookups.spec, id_maps)
        tables = [feature.table.name for feature in lookups.spec.table_features]
        # Numbers of sequences follow them.
        addresses = dict(zip(tables, maps.of_features[: len(tables)].tolist(), strict=True))
        described = zip(pieces, lookups.pieces, lookups.first_rows, lookups.id_maps, strict=True)
        for piece, lookup, first_row, id_map in described:
            _describe(piece, lookup, kernel.formats[lookup.tables.row_format])
            piece.first_row = first_row
            piece.id_map = None if id_map is None else addresses[id_map.table.name]
        settings = _Share(
            key.model.encode(),
            key.version,
            key.manifest,
            share,
            pieces,
            len(pieces),
            lookups.most_entries,
            lookups.max_answer_bytes,
            kernel.address,
            kernel.instruction_set,
        )
        added: int = self._library.sharded_infer_shares_add(self._address, settings)
        self._kept[added] = maps, pieces
        return added

    def drop(self, share: int) -> None:
        """Forget a version; return when its memory is not read any more."""
        self._library.sharded_infer_shares_drop(self._address, share)
        del self._kept[share]

    def fetch(self, server: int, method: int, events: int, held: int, milliseconds: int) -> int:
        """Fetch one event as `Http2Server.fetch` of a compiled server, after answering lookups."""
        count: int = self._library.sharded_infer_shares_fetch(
            self._address, server, method, events, held, milliseconds
        )
        return count


def _describe(piece: _Piece, lookup: PooledLookup, row_format: int) -> None:
    tables = lookup.tables
    feature: Feature = kernel_features(tables)[0]
    piece.rows, piece.row_bytes, piece.columns = feature.rows, feature.row_bytes, feature.dim
    piece.mean, piece.row_count, piece.format = feature.mean, tables.rows[0], row_format
    piece.overlay = feature.overlay
    watches = [_Watch(*file.watch) for file in tables.files]
    piece.watches, piece.watch_count = (_Watch * len(watches))(*watches), len(watches)
