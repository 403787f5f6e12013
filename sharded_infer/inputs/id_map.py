"""Id maps of an opened version: raw ids to rows, before their lookup."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from kernels.bags import Bags
from kernels.bounds import locate
from kernels.ids.id_hash import IdHash, hash_ids, murmur_hash3_2x64
from kernels.ids.id_index import IdIndex
from kernels.ids.partition import parts_of
from kernels.mapped_file import MappedFile, Watch
from sharded_infer.errors import InputError, InternalError, RequestError
from sharded_infer.specs.id_map_spec import HashedRows, SharedRows
from sharded_infer.specs.model_spec import FeatureSpec, TableSpec
from sharded_infer.tensors import tensor_of


class IdMap:
    """The id map of one table. Thread-safe."""

    def __init__(self, table: TableSpec, index: IdIndex, file: MappedFile | None = None) -> None:
        """`file` is None for an index in memory; InternalError for a table without an index."""
        if table.id_map is None or table.id_map.unknown is None:
            raise InternalError(f"table {table.name!r}: has no id map that says what unknown means")
        self.table, self.index, self.unknown = table, index, table.id_map.unknown
        self.partition = table.id_map.partition
        self._file = file

    @property
    def watch(self) -> Watch | None:
        """Truncation check of the mapped file; None: the index is in memory."""
        return None if self._file is None else self._file.watch

    def known(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """The row of each id, int64 `[N]`, -1 if unknown; LostMemoryError if the file shrank."""
        rows = self.index.rows(ids)
        if self._file is not None:
            self._file.check()
        return rows

    def unknown_rows(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """The row that each unknown id reads, int64 `[N]`; -1 where it leaves its bag."""
        if isinstance(self.unknown, SharedRows):
            rows = shared_rows_of(self.unknown, ids)
            if self.partition is not None:
                firsts = np.array(self.partition.first_rows, np.int64)
                rows += firsts[parts_of(ids, self.partition.first_hashes)]
            return rows
        if isinstance(self.unknown, HashedRows):
            return hashed_rows_of(self.unknown, ids)
        return np.full(len(ids), -1)

    def check(self) -> None:
        """Read the whole index and refuse content that publishing would not write.

        Raises InputError with the table and the fault.
        """
        try:
            self.index.check(self.table.rows)
        except InputError as error:
            raise InputError(f"table {self.table.name!r}: {error}") from error
        if self.partition is None:
            return
        firsts = np.array(self.partition.first_rows)
        for ids, rows in self.index.entries():
            parts = parts_of(ids, self.partition.first_hashes)
            wrong = np.flatnonzero(np.searchsorted(firsts, rows, "right") - 1 != parts)
            if len(wrong):
                raise InputError(
                    f"table {self.table.name!r}: id {ids[wrong[0]]} has row {rows[wrong[0]]}, "
                    f"expected one of its part {parts[wrong[0]]}"
                )

    def check_file(self) -> None:
        """Refuse a truncated mapped file, also without lookups; LostMemoryError naming it."""
        if self._file is not None:
            self._file.check_size()


def shared_rows_of(shared: SharedRows, ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """The row that each unknown id reads, int64 `[N]`."""
    rows = np.array(shared.rows, np.int64)
    if len(rows) == 1:
        return np.full(len(ids), rows[0])
    return rows[segments_of(ids, len(rows), shared.input_size)]


def segments_of(ids: NDArray[np.int64], segments: int, input_size: int) -> NDArray[np.int64]:
    """The segment of each id, int64 `[N]`, as `SharedRows` defines it."""
    unsigned = ids.view(np.uint64)
    at = unsigned // np.uint64(-(-input_size // segments))
    return np.where(at < segments, at, unsigned % np.uint64(segments)).astype(np.int64)


def hashed_rows_of(hashed: HashedRows, ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """The row that each unknown id reads, int64 `[N]`: that of TorchRec's MPZCH.

    Source: `HashZchManagedCollisionModule` and `TrainInputMapper` of
    torchrec/modules/hash_mc_modules.py, release 1.8. Ids from `input_size` on, which these read
    outside the table, are taken modulo the buckets.
    """
    if hashed.input_size:
        bucket, left = np.divmod(ids, -(-hashed.input_size // hashed.buckets))
        bucket %= hashed.buckets
    else:
        left, bucket = np.divmod(ids, hashed.buckets)
    size = hashed.rows // hashed.buckets
    hashes = murmur_hash3_2x64(left if hashed.divided else ids)
    if hashed.reserved is None:
        local = hashes % np.uint64(size)
    else:
        local = np.uint64(size - hashed.reserved) + hashes % np.uint64(hashed.reserved)
    rows: NDArray[np.int64] = bucket * size + local.astype(np.int64)
    return rows


class _Hashed(NamedTuple):
    position: int
    hashing: tuple[IdHash, int]
    table_rows: int

    def rows(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        name, seed = self.hashing
        return (hash_ids(name, ids, seed) % np.uint64(self.table_rows)).astype(np.int64)


class _Mapped(NamedTuple):
    position: int
    name: str
    id_map: IdMap


class MappedIds(NamedTuple):
    """Bags with mapped raw ids: rows where ids are mapped or hashed, unchanged ids elsewhere.

    `unknown` counts the unknown ids of each table that has some.
    """

    bags: Bags
    unknown: tuple[tuple[str, int], ...]


class IdMapping:
    """Maps the raw ids of some features to rows."""

    def __init__(self, features: Sequence[FeatureSpec], maps: Mapping[str, IdMap]) -> None:
        """Find the features with raw ids.

        `features` are those of later bags, in order. Ids of tables missing from `maps` stay raw.
        """
        self._hashed = [
            _Hashed(position, feature.table.id_map.hashing, feature.table.rows)
            for position, feature in enumerate(features)
            if feature.table.id_map is not None and feature.table.id_map.hashing is not None
        ]
        self._in_place = tuple(feature.sequence is not None for feature in features)
        self._mapped = [
            _Mapped(position, feature.name, maps[feature.table.name])
            for position, feature in enumerate(features)
            if feature.table.name in maps
        ]

    def apply(self, bags: Bags) -> MappedIds:
        """Map ids to rows; drop unknown ones from their bags where the map says so.

        Raises RequestError, naming the feature, the sample, the id and the table, for an unknown id
        whose map says `error`; LostMemoryError if a map's file was truncated.
        """
        if not self._mapped and not self._hashed:
            return MappedIds(bags, ())
        ends = torch.cumsum(bags.lengths.sum(1), 0).tolist()
        values = bags.values.numpy().copy()
        for hashed in self._hashed:
            part = _part(ends, hashed.position)
            values[part] = hashed.rows(values[part])
        counts: Counter[str] = Counter()
        for position, name, id_map in self._mapped:
            part = _part(ends, position)
            ids = values[part]
            rows = id_map.known(ids)
            unknown = np.flatnonzero(rows < 0)
            if len(unknown):
                if id_map.unknown == "error":
                    first = part.start + int(unknown[0])
                    raise RequestError(
                        f"feature {name!r}, sample {locate(bags, first)[1]}: id {values[first]} is "
                        f"not in the id map of table {id_map.table.name!r}"
                    )
                counts[id_map.table.name] += len(unknown)
                rows[unknown] = id_map.unknown_rows(ids[unknown])
            values[part] = rows
        return MappedIds(self._without_absent(bags, values, ends), tuple(sorted(counts.items())))

    def _without_absent(self, bags: Bags, values: NDArray[np.int64], ends: Sequence[int]) -> Bags:
        kept = np.ones(len(values), np.bool_)
        for position, *_ in self._mapped:
            part = _part(ends, position)
            kept[part] = values[part] >= 0
        mapped = Bags(tensor_of(values), bags.lengths, bags.weights)
        return mapped if kept.all() else leave_out(mapped, ~tensor_of(kept), self._in_place)


def _part(ends: Sequence[int], position: int) -> slice:
    return slice(ends[position - 1] if position else 0, ends[position])


def leave_out(bags: Bags, left: torch.Tensor, in_place: Sequence[bool]) -> Bags:
    """The bags without the ids marked in `left`, bool `[N]`; in sequences -1 replaces them.

    `in_place` is True for each feature in a sequence.
    """
    if not any(in_place):
        return keep_ids(bags, ~left)
    counts = bags.lengths.sum(1)
    marked = left & torch.repeat_interleave(torch.tensor(in_place), counts)
    values = torch.where(marked, -1, bags.values)
    return keep_ids(Bags(values, bags.lengths, bags.weights), ~left | marked)


def keep_ids(bags: Bags, kept: torch.Tensor) -> Bags:
    """The bags with only the ids marked in `kept`, bool `[N]`."""
    lengths = bags.lengths.reshape(-1)
    owners = torch.repeat_interleave(torch.arange(lengths.numel()), lengths)
    counts = torch.bincount(owners[kept], minlength=lengths.numel())
    weights = None if bags.weights is None else bags.weights[kept]
    return Bags(bags.values[kept], counts.view_as(bags.lengths), weights)
