"""TorchRec's MPZCH: a hash table of ids, whose slots are the table's rows.

The rows are divided into equal buckets. The search for an id starts at a slot of its bucket chosen
by its hash and probes at most `max_probe` slots; empty slots do not stop it. Source:
`HashZchManagedCollisionModule` and `TrainInputMapper` of torchrec/modules/hash_mc_modules.py,
release 1.8, and `process_item_zch` of FBGEMM's faster_hash_ops.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from kernels.ids.id_hash import murmur_hash3_2x64
from quant.sources.weight_source import WeightSource
from sharded_infer.errors import WeightsError
from sharded_infer.importing.id_maps.id_map_source import (
    Chunk,
    HashedRows,
    IdMapSource,
    Ids,
    Unknown,
)
from sharded_infer.importing.id_maps.stored_ids import (
    check_column,
    chunks_of,
    counts_by_position,
    read_column,
)

MPZCH_IDS = "_hash_zch_identities"
MPZCH_BUCKETS = "_hash_zch_bucket"
MPZCH_COUNTS = "_hash_zch_runtime_meta"
EMPTY = -1  # of a slot without an id


@dataclass(frozen=True, slots=True)
class MpzchSettings:
    """Settings of a `HashZchManagedCollisionModule` that a checkpoint lacks; its defaults.

    Attributes:
        disable_fallback: unknown ids are left out; else they read a row chosen by their hash.
        divided: `inference_dispatch_div_train_world_size`.
        reserved_slots: at the end of each bucket, `get_reserved_slots_per_bucket()`; None without
            `opt_in_prob`.
        track_id_freq: the module counts the uses of each id.
    """

    disable_fallback: bool
    input_hash_size: int = 0
    max_probe: int = 128
    divided: bool = False
    reserved_slots: int | None = None
    track_id_freq: bool = False


def mpzch_source(
    source: WeightSource, ids: str, buckets: int, settings: MpzchSettings
) -> IdMapSource:
    """Open, check and count the id map of one table.

    The key `ids` holds identities, int64 `[Z]` or `[Z, 1]`, `EMPTY` in free slots; counts lie
    beside it if `settings` track them. `buckets` is `total_num_buckets`. Other metadata is ignored:
    in every eviction policy of release 1.8 it holds times. Raises WeightsError, naming the id and
    its slot, if an id is unreachable with these settings, or if the rows are not such a table.
    """
    rows = check_column(source, ids)
    where = f"{source.description}: {ids!r}"
    if buckets < 1 or rows % buckets or not rows:
        raise WeightsError(f"{where}: expected {rows} rows in equal buckets, got {buckets} buckets")
    size, reserved = rows // buckets, settings.reserved_slots or 0
    if not 0 <= reserved < size or settings.max_probe < 1 or settings.input_hash_size < 0:
        raise WeightsError(
            f"{where}: expected max_probe of 1 at least, input_hash_size of 0 at least and 0 to "
            f"{size - 1} reserved slots in a bucket of {size}, got {settings.max_probe}, "
            f"{settings.input_hash_size} and {settings.reserved_slots}"
        )
    unknown: Unknown = "zero"
    if not settings.disable_fallback:
        unknown = HashedRows(
            rows, buckets, settings.input_hash_size, settings.divided, settings.reserved_slots
        )
    read = _Reader(source, ids, buckets, size, settings)
    count = sum(len(known) for known, _ in read())
    frequencies = None
    if settings.track_id_freq:
        counts = ids.removesuffix(MPZCH_IDS) + MPZCH_COUNTS
        check_column(source, counts, rows)
        frequencies = partial(counts_by_position, source, counts, rows)
    return IdMapSource(
        where, count, read, table_rows=rows, unknown=unknown, frequencies=frequencies
    )


@dataclass(frozen=True, slots=True)
class _Reader:
    source: WeightSource
    key: str
    buckets: int
    size: int
    settings: MpzchSettings

    @property
    def _open(self) -> int:
        return self.size - (self.settings.reserved_slots or 0)

    def __call__(self) -> Iterator[Chunk]:
        for start, stop in chunks_of(self.buckets * self.size):
            stored = read_column(self.source, self.key, start, stop)
            slots = np.flatnonzero(stored != EMPTY) + start
            stored = stored[slots - start]
            ids = self._ids(stored, slots // self.size)
            self._check(ids, stored, slots)
            yield ids, slots
        yield from self._empty()

    def _ids(self, stored: Ids, buckets: Ids) -> Ids:
        settings = self.settings
        if not settings.divided:
            return stored
        if settings.input_hash_size:
            return stored + buckets * self._block
        return stored * self.buckets + buckets

    @property
    def _block(self) -> int:
        return -(-self.settings.input_hash_size // self.buckets)

    def _check(self, ids: Ids, stored: Ids, slots: Ids) -> None:
        bucket, local = slots // self.size, slots % self.size
        if self.settings.input_hash_size:
            home, again = ids // self._block, ids % self._block
        else:
            home, again = ids % self.buckets, ids // self.buckets
        steps = (local - self._first(stored)) % self._open
        missed = (home != bucket) | (steps >= self.settings.max_probe) | (local >= self._open)
        if self.settings.divided:
            missed |= again != stored
        if missed.any():
            place = int(missed.argmax())
            raise WeightsError(
                f"{self.source.description}: {self.key!r}: id {ids[place]} in slot {slots[place]} "
                f"is not where the module searches it: bucket {home[place]}, expected "
                f"{bucket[place]}; {steps[place]} steps from its first slot; check {self.buckets} "
                f"buckets and {self.settings}"
            )

    def _first(self, stored: Ids) -> Ids:
        return (murmur_hash3_2x64(stored) % np.uint64(self._open)).astype(np.int64)

    def _empty(self) -> Iterator[Chunk]:
        """Ids equal to `EMPTY`, which the module resolves to the first empty slot."""
        if self.settings.input_hash_size:
            return  # they are negative, which it does not take
        given = np.arange(-self.buckets, 0) if self.settings.divided else np.array([EMPTY])
        steps = np.arange(min(self.settings.max_probe, self._open))
        searched = (self._first(np.array([EMPTY]))[0] + steps) % self._open
        for raw in given:
            top = int(raw % self.buckets) * self.size
            bucket = read_column(self.source, self.key, top, top + self._open)
            empty = searched[bucket[searched] == EMPTY]
            if len(empty):
                yield np.array([raw]), empty[:1] + top
