"""A model's id maps for compiled code (`native/abi/model.h`)."""

import ctypes
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from kernels.native_library import address_of
from serving.abi.model import IdMap, Unknown
from sharded_infer.inputs.placed_ids import PlacedIds, RowMap
from sharded_infer.specs.id_map_spec import HashedRows, SharedRows
from sharded_infer.specs.model_spec import ModelSpec

_UNKNOWN = {"error": Unknown.REFUSED, "zero": Unknown.ABSENT}


class NativeIdMaps:
    """Id maps of a model's features, kept alive for compiled code.

    `of_features` is int64 `[features]`: addresses of `IdMap`s, 0 where ids are rows.
    """

    def __init__(self, spec: ModelSpec, id_maps: Mapping[str, RowMap]) -> None:
        # Compiled code has their addresses.
        self._numbers = spec.sequence_numbers
        self._kept: list[RowMap | NDArray[np.int64] | NDArray[np.uint64]] = [*id_maps.values()]
        self._fields = {
            table.name: self._fields_of(id_maps.get(table.name), counted)
            for counted, table in enumerate(spec.mapped_tables)
        }
        for table in spec.ordered_tables:
            self._fields[table.name] = self._fields_of(id_maps.get(table.name), 0)
        for table in spec.raw_tables:
            if table.id_map is not None and table.id_map.hashing is not None:
                name, seed = table.id_map.hashing
                self._fields[table.name] = IdMap(hash=name.number, seed=seed, table_rows=table.rows)
        self.of_features = np.array(
            [
                ctypes.addressof(self._fields[feature.table.name])
                if feature.table.name in self._fields
                else 0
                for feature in spec.input_features
            ],
            np.int64,
        )

    def raw(self, inputs: Sequence[str]) -> NDArray[np.int64]:
        """Addresses, by input, of a map without changes; 0 for numbers of sequences."""
        self._raw = IdMap()
        address = ctypes.addressof(self._raw)
        return np.array([0 if name in self._numbers else address for name in inputs], np.int64)

    def _fields_of(self, id_map: RowMap | None, counted: int) -> IdMap:
        fields = IdMap(counted=counted)
        if id_map is None:
            return fields
        watch = id_map.watch
        if watch is not None:
            fields.mark, fields.last, fields.last_byte = watch
        if isinstance(id_map, PlacedIds):
            places = id_map.places
            fields.places, fields.placed = places.blocks.ctypes.data, places.count
            fields.placed_rows = id_map.table.rows
            return fields
        fields.index = id_map.index.fields
        unknown = id_map.unknown
        if isinstance(unknown, SharedRows):
            rows = np.array(unknown.rows, np.int64)
            self._kept.append(rows)
            fields.unknown, fields.shared_rows = Unknown.SHARED_ROW, address_of(rows)
            fields.segments = len(rows)
            fields.segment_ids = -(-unknown.input_size // len(rows))
            if id_map.partition is not None:
                hashes = np.array(id_map.partition.first_hashes, np.uint64)
                firsts = np.array(id_map.partition.first_rows, np.int64)
                self._kept += [hashes, firsts]
                fields.part_hashes, fields.part_rows = address_of(hashes), address_of(firsts)
                fields.parts = len(firsts)
        elif isinstance(unknown, HashedRows):
            size = unknown.rows // unknown.buckets
            fields.unknown, fields.segments = Unknown.HASHED_ROW, unknown.buckets
            fields.segment_ids = -(-unknown.input_size // unknown.buckets)
            fields.bucket_rows, fields.divided = size, unknown.divided
            fields.hashed_rows = size if unknown.reserved is None else unknown.reserved
            fields.first_row = size - fields.hashed_rows
        else:
            fields.unknown = _UNKNOWN[unknown]
        return fields
