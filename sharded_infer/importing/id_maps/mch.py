"""TorchRec's MCH: ids in ascending order, the row of each, and a row for all others.

Each training rank has a segment of the rows and the ids that row-wise sharding sends to it. Its
last row serves its unknown ids. Source: `MCHManagedCollisionModule` and `_mch_remap` of
torchrec/modules/mc_modules.py, `RwSparseFeaturesDist` of
torchrec/distributed/sharding/rw_sharding.py, release 1.8.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from quant.sources.weight_source import WeightSource
from sharded_infer.errors import WeightsError
from sharded_infer.importing.id_maps.id_map_source import Chunk, IdMapSource, Ids, SharedRows
from sharded_infer.importing.id_maps.stored_ids import (
    CHUNK,
    check_column,
    chunks_of,
    read_column,
)
from sharded_infer.inputs.id_map import segments_of

MCH_IDS = "_mch_sorted_raw_ids"
MCH_ROWS = "_mch_remapped_ids_mapping"
MCH_SEGMENTS = "_output_segments_tensor"
MCH_COUNTS = "_mch_counts"  # of modules whose eviction policy counts
EMPTY = 2**63 - 1  # of a slot without an id
_MOST = 2**63 - 1


def mch_source(
    source: WeightSource,
    ids: str,
    rows: str,
    starts: Sequence[int],
    input_size: int = _MOST,
    counts: str | None = None,
) -> IdMapSource:
    """Open, check and count the id map of one table.

    Args:
        ids: the key of the ids, int64 `[Z]`, ascending in each segment, `EMPTY` ones last.
        rows: the key of the rows, int64 `[Z]`, each in its id's segment.
        starts: the first row of each training rank's segment, ascending from 0.
        input_size: `input_hash_size` of the module.
        counts: the key of the ids' use counts, int64 `[Z]`; None: unknown.

    Raises WeightsError, naming the id and its segment, if the arrays are not such a map.
    """
    table_rows = check_column(source, ids)
    check_column(source, rows, table_rows)
    where = f"{source.description}: {ids!r}"
    if starts[0] != 0 or any(
        b <= a for a, b in zip(starts, (*starts[1:], table_rows), strict=True)
    ):
        raise WeightsError(
            f"{where}: expected segments from row 0 up, of {table_rows} rows, got {list(starts)}"
        )
    if not 0 < input_size <= _MOST:
        raise WeightsError(
            f"{where}: expected an input_hash_size from 1 to {_MOST}, got {input_size}"
        )
    stops = [*starts[1:], table_rows]
    read = _Reader(source, ids, rows, tuple(zip(starts, stops, strict=True)), input_size)
    return IdMapSource(
        f"{source.description}: {ids!r}",
        sum(len(known) for known, _ in read()),
        read,
        table_rows=table_rows,
        unknown=SharedRows(tuple(stop - 1 for stop in stops), input_size),
        frequencies=None if counts is None else _Counts(source, rows, counts, table_rows),
    )


@dataclass(frozen=True, slots=True)
class _Counts:
    source: WeightSource
    rows: str
    counts: str
    table_rows: int

    def __call__(self) -> Iterator[Chunk]:
        check_column(self.source, self.counts, self.table_rows)
        for start, stop in chunks_of(self.table_rows):
            rows = read_column(self.source, self.rows, start, stop)
            yield rows, read_column(self.source, self.counts, start, stop)


@dataclass(frozen=True, slots=True)
class _Reader:
    source: WeightSource
    ids: str
    rows: str
    segments: tuple[tuple[int, int], ...]
    input_size: int

    def __call__(self) -> Iterator[Chunk]:
        for segment, (first, end) in enumerate(self.segments):
            empty: int | None = None
            last: Ids = np.empty(0, np.int64)
            for start in range(first, end, CHUNK):
                stop = min(start + CHUNK, end)
                ids = read_column(self.source, self.ids, start, stop)
                rows = read_column(self.source, self.rows, start, stop)
                self._check_order(np.concatenate([last, ids]), segment)
                self._check_rows(ids, rows, segment)
                last = ids[-1:]
                known = int(np.searchsorted(ids, EMPTY))
                if known < len(ids) and empty is None:
                    empty = int(rows[known])
                yield ids[:known].copy(), rows[:known].copy()
            # The module resolves this id to its first empty slot.
            most = np.array([EMPTY])
            if empty is not None and self._segments_of(most)[0] == segment:
                yield most, np.array([empty])

    def _segments_of(self, ids: Ids) -> Ids:
        return segments_of(ids, len(self.segments), self.input_size)

    def _check_order(self, ids: Ids, segment: int) -> None:
        descends = (ids[1:] <= ids[:-1]) & (ids[:-1] != EMPTY) | (ids[1:] < ids[:-1])
        if descends.any():
            place = int(descends.argmax())
            raise WeightsError(
                f"{self._where(segment)}: expected ids in ascending order, each once, got "
                f"{ids[place + 1]} after {ids[place]}; check the number of training ranks, "
                f"{len(self.segments)}"
            )

    def _check_rows(self, ids: Ids, rows: Ids, segment: int) -> None:
        first, end = self.segments[segment]
        outside = (rows < first) | (rows >= end)
        if outside.any():
            place = int(outside.argmax())
            raise WeightsError(
                f"{self._where(segment)}: id {ids[place]} has row {rows[place]}, expected one of "
                f"its segment, {first} to {end - 1}; check the number of training ranks, "
                f"{len(self.segments)}"
            )
        homes = self._segments_of(ids)
        elsewhere = (homes != segment) & (ids != EMPTY)
        if elsewhere.any():
            place = int(elsewhere.argmax())
            raise WeightsError(
                f"{self._where(segment)}: row-wise sharding sends id {ids[place]} to segment "
                f"{homes[place]}; check input_hash_size={self.input_size} and the number of "
                f"training ranks, {len(self.segments)}"
            )

    def _where(self, segment: int) -> str:
        return f"{self.source.description}: {self.ids!r}, segment {segment}"
