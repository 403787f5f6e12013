"""Lookups in compiled code, from message to answer, without the GIL.

Its source in `native/remote_lookup/` has the pseudocode. It leaves unusual lookups and errors to
Python (`LookupService`), its reference.
"""

import ctypes
from array import array

from kernels.abi.lookup import Feature
from kernels.backends.native import kernel_features, kernel_for_compiled_code
from kernels.pooled_lookup import PooledLookup
from serving.abi import shares as abi
from serving.metrics.families.shard_host_families import HOST_LOOKUP_SECONDS
from serving.protocol.lookups.version_key import VersionKey
from serving.protocol.readers.native_id_maps import NativeIdMaps
from serving.shard_host.lookup_counts import LookupCounts
from sharded_infer.lookups.share_lookups import ShareLookups

_NATIVE = "native"


class CompiledLookups:
    """Shares for lookups in compiled code; thread-safe."""

    def __init__(self) -> None:
        """Hold no share yet. It is never freed: threads may answer until the process ends."""
        boundaries = array("d", HOST_LOOKUP_SECONDS.boundaries)
        self._address = abi.shares_create(boundaries.buffer_info()[0], len(boundaries))
        # Memory of compiled code, by share: id maps, and the watches of pieces.
        self._kept: dict[int, object] = {}

    def counts(self) -> LookupCounts:
        """Counts of the lookups that bypass Python."""
        numbers = (ctypes.c_int64 * LookupCounts.LENGTH)()
        abi.shares_counted(self._address, numbers)
        rows, row_bytes, received, sent, nanoseconds, *buckets = numbers
        return LookupCounts(rows, row_bytes, received, sent, nanoseconds / 1e9, tuple(buckets))

    def add(self, key: VersionKey, lookups: ShareLookups, share: int = 0) -> int | None:
        """Answer lookups of a version, named by its share or 0, until `drop`; keep `lookups` alive.

        Returns the argument of `drop`; None if compiled code does not support the tables.
        """
        if any(piece.backend != _NATIVE or piece.tables.tiers for piece in lookups.pieces):
            return None
        kernel = kernel_for_compiled_code()
        pieces = (abi.Piece * len(lookups.pieces))()
        id_maps = {one.table.name: one for one in lookups.id_maps if one is not None}
        maps = NativeIdMaps(lookups.spec, id_maps)
        tables = [feature.table.name for feature in lookups.spec.table_features]
        # Numbers of sequences follow them.
        addresses = dict(zip(tables, maps.of_features[: len(tables)].tolist(), strict=True))
        watches = []
        described = zip(pieces, lookups.pieces, lookups.first_rows, lookups.id_maps, strict=True)
        for piece, lookup, first_row, id_map in described:
            watches.append(_describe(piece, lookup, kernel.formats[lookup.tables.row_format]))
            piece.first_row = first_row
            piece.id_map = None if id_map is None else addresses[id_map.table.name]
        settings = abi.ShareSettings(
            key.model.encode(),
            key.version,
            key.manifest,
            share,
            ctypes.addressof(pieces),
            len(pieces),
            lookups.most_entries,
            lookups.max_answer_bytes,
            kernel.address,
            kernel.instruction_set,
        )
        added: int = abi.shares_add(self._address, settings)
        self._kept[added] = maps, watches
        return added

    def drop(self, share: int) -> None:
        """Forget a version; return when its memory is not read any more."""
        abi.shares_drop(self._address, share)
        del self._kept[share]

    def fetch(self, server: int, method: int, events: int, held: int, milliseconds: int) -> int:
        """Fetch one event as `Http2Server.fetch` of a compiled server, after answering lookups."""
        count: int = abi.shares_fetch(self._address, server, method, events, held, milliseconds)
        return count


def _describe(piece: abi.Piece, lookup: PooledLookup, row_format: int) -> object:
    """Fills a piece, and returns the memory that it refers to beside that of the lookup."""
    tables = lookup.tables
    feature: Feature = kernel_features(tables)[0]
    piece.rows, piece.row_bytes, piece.columns = feature.rows, feature.row_bytes, feature.dim
    piece.mean, piece.row_count, piece.format = feature.mean, tables.rows[0], row_format
    piece.overlay = feature.overlay
    watches = (abi.Watch * len(tables.files))(*(abi.Watch(*file.watch) for file in tables.files))
    piece.watches, piece.watch_count = ctypes.addressof(watches), len(watches)
    return watches
