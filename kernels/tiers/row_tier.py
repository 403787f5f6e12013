"""Rows of a table in three tiers: the first in memory, others in a cache of rows, all in a file.

Compiled code (`kernels/native/tiers/`, which has the pseudocode) finds where each row lies: an
address, so kernels read rows of every tier alike, and results have the bits of rows in memory.
"""

import ctypes
import os
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.errors import InputError, RowReadError
from kernels.native_library import address_of, load_library
from kernels.row_overlay import OverlayFields, RowOverlay

# Boundaries of `TierCounts.latencies`, seconds; row_tier.h.
LATENCIES: Final = tuple(50e-6 * 2**power for power in range(16))
# What a row in the cache takes beside its bytes; row_cache.h.
SLOT_BYTES: Final = 28
# Rows are waited for as long as this, if no deadline comes before.
MOST_SECONDS: Final = 10.0
_MOST_ROWS: Final = 2**32 - 1
_LOADED_BYTES: Final = 16 * 2**20  # at a time
_NUMBER, _ADDRESS = ctypes.c_int64, ctypes.c_void_p
# `Missing` of row_tier.h.
_THERE, _LATE, _REFUSED, _FAILED = range(4)


class _Settings(ctypes.Structure):
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


class _Missing(ctypes.Structure):
    """`MissingRow` of kernels/native/tiers/row_tier.h."""

    _fields_ = (
        ("why", ctypes.c_int32),
        ("error", ctypes.c_int32),
        ("tier", _NUMBER),
        ("row", _NUMBER),
        ("count", _NUMBER),
    )


class TierCounts(NamedTuple):
    """What a tier has done since it was made.

    Attributes:
        hot, cached, missed: ids by where their rows were; `missed` has those whose read another id
            had asked for. Ids of changed rows are in none.
        unplaced: of the missed: without a slot, because all that were looked at were in use, or
            hold rows that are asked for more often.
        used_slots: of the cache, now.
        nanoseconds: of all reads, from asking to the end.
        latencies: reads by that time: up to each of `LATENCIES`, and above the last.
    """

    hot: int
    cached: int
    missed: int
    unplaced: int
    reads: int
    read_bytes: int
    failed_reads: int
    used_slots: int
    nanoseconds: int
    latencies: tuple[int, ...]

    @property
    def hit_rate(self) -> float:
        """Share of the ids whose rows were in memory; 1 before there was an id."""
        held = self.hot + self.cached
        return held / (held + self.missed) if held + self.missed else 1.0


def _load() -> ctypes.CDLL | None:
    library = load_library("kernels")
    if library is None:
        return None
    declared = {
        "open": (_ADDRESS, (ctypes.POINTER(_Settings),)),
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
        "wait": (None, (_ADDRESS, ctypes.c_double, ctypes.POINTER(_Missing))),
        "release": (None, (_ADDRESS,)),
    }
    for name, (result, arguments) in declared.items():
        function = getattr(library, f"sharded_infer_tier_{name}")
        function.restype, function.argtypes = result, arguments
    return library


_LIBRARY = _load()


def has_tiers() -> bool:
    """Whether the package was built with compiled code, which tiers need."""
    return _LIBRARY is not None


def queued_reads() -> int:
    """Reads of this process that wait or are with the kernel."""
    return int(_library().sharded_infer_tier_queued())


def reader_name() -> str:
    """What carries this process's reads: `io_uring`, or `threads` where it is not allowed."""
    name: bytes = _library().sharded_infer_tier_reader()
    return name.decode()


class RowTier:
    """The rows of one table, or of a part of it, of which some lie in memory. Thread-safe.

    Its memory is that of the hot and the cached rows; a forked process has its own from then on.

    Attributes:
        name: of the table, for messages.
        is_direct: whether the file is read past the page cache; its file system may refuse that.
    """

    def __init__(
        self,
        path: Path,
        *,
        offset: int,
        row_bytes: int,
        rows: int,
        hot_rows: int,
        cached_rows: int,
        name: str = "",
    ) -> None:
        """Opens the file, and reads nothing yet: `load` does, before the first lookup.

        Args:
            offset: of the first row in the file, bytes.
            hot_rows: the first rows, which stay in memory.
            cached_rows: how many of the others the cache holds.

        Raises:
            InputError: the numbers do not fit together, or there is no compiled code.
            MemoryError: there is not enough memory.
            OSError: the file cannot be opened.
        """
        library = _library()
        if not (0 <= hot_rows <= rows <= _MOST_ROWS and 0 <= cached_rows <= rows - hot_rows):
            raise InputError(
                f"{path}: expected hot and cached rows of up to {min(rows, _MOST_ROWS)} rows, got "
                f"{hot_rows} and {cached_rows} of {rows}"
            )
        self.path, self.name = path, name or path.name
        self.rows, self.row_bytes, self.hot_rows = rows, row_bytes, hot_rows
        self.cached_rows = cached_rows
        handle, self.is_direct = _open(path)
        fields = (offset, row_bytes, rows, hot_rows, cached_rows)
        address = library.sharded_infer_tier_open(_Settings(handle, self.is_direct, *fields))
        if address is None:
            os.close(handle)
            raise MemoryError(f"{path}: no memory for {hot_rows} hot, {cached_rows} cached rows")
        self.address: int = address
        weakref.finalize(self, library.sharded_infer_tier_close, address).atexit = False

    @property
    def memory_bytes(self) -> int:
        """Memory that it takes when its cache is full."""
        held = (self.hot_rows + self.cached_rows) * self.row_bytes
        return held + self.cached_rows * SLOT_BYTES

    def load(self) -> Iterator[int]:
        """Reads the hot rows, in the order of the file.

        Yields:
            The bytes of each step.

        Raises:
            RowReadError: the file cannot be read, or is too short.
        """
        step = max(1, _LOADED_BYTES // self.row_bytes)
        for first in range(0, self.hot_rows, step):
            count = min(step, self.hot_rows - first)
            error = _library().sharded_infer_tier_load(self.address, first, count)
            if error:
                raise RowReadError(f"{self._where}: rows from {first} on: {os.strerror(error)}")
            yield count * self.row_bytes

    def read(self, ids: Tensor, seconds: float = MOST_SECONDS) -> Tensor:
        """Copies rows, from whatever tier they are in.

        Args:
            ids: int64 `[N]`, of the tier's rows.

        Returns:
            uint8 `[N, row_bytes]`.

        Raises:
            RowReadError: as `StartedRows.wait`.
        """
        started = StartedRows([TierPart(self)], (None,), ids, [len(ids)])
        try:
            started.wait(monotonic() + seconds)
            out = torch.empty(len(ids), self.row_bytes, dtype=torch.uint8)
            for number, place in enumerate(started.places.tolist()):
                ctypes.memmove(out[number].data_ptr(), place, self.row_bytes)
            return out
        finally:
            started.close()

    def counts(self) -> TierCounts:
        """What it has done."""
        numbers = (_NUMBER * (len(TierCounts._fields) + len(LATENCIES)))()
        _library().sharded_infer_tier_counts(self.address, numbers)
        own = len(TierCounts._fields) - 1
        return TierCounts._make((*numbers[:own], tuple(numbers[own:])))

    def failure(self, missing: _Missing, seconds: float) -> RowReadError:
        """What a lookup raises."""
        if missing.why == _LATE:
            what = f"{missing.count} rows had not been read after {seconds:.3g} s"
        elif missing.why == _REFUSED:
            what = "its disk has not answered for 2 s or more: rows are read when it does again"
        elif missing.why == _FAILED:
            what = f"row {missing.row} cannot be read: {os.strerror(missing.error)}"
        else:
            what = f"row {missing.row} cannot be read: the file has become shorter"
        return RowReadError(f"{self._where}: {what}")

    @property
    def _where(self) -> str:
        return f"table {self.name!r}: {self.path}"


@dataclass(frozen=True, slots=True)
class TierPart:
    """A tier from one of its rows on, where a lookup's ids begin."""

    tier: RowTier
    first_row: int = 0

    def part(self, first_row: int) -> "TierPart":
        """The part of it from one of its rows on."""
        return TierPart(self.tier, self.first_row + first_row)


class StartedRows:
    """The rows of one lookup: in memory, or on their way from files.

    Attributes:
        places: uint64 `[N]`, the address of each id's row; to be read between `wait` and `close`.
    """

    __slots__ = ("__weakref__", "_close", "_kept", "_lookup", "_tiers", "places")

    def __init__(
        self,
        parts: Sequence[TierPart],
        overlays: Sequence[RowOverlay | None],
        ids: Tensor,
        counts: Sequence[int],
    ) -> None:
        """Finds what is in memory, and starts to read what is not.

        Args:
            parts: one for each feature.
            overlays: changed rows of each feature's part, which stand in front of its rows.
            ids: int64 `[N]`, contiguous, all inside their tables: those of each feature in turn.
            counts: of each feature's ids.
        """
        library = _library()
        self.places: NDArray[np.uint64] = np.empty(len(ids), np.uint64)
        # Several features may be of one table: a tier's number is that of its feature.
        self._tiers = [part.tier for part in parts]
        self._kept = overlays, ids
        self._lookup: int = library.sharded_infer_tier_lookup()
        self._close = weakref.finalize(self, library.sharded_infer_tier_release, self._lookup)
        self._close.atexit = False
        places, values = address_of(self.places), ids.data_ptr()
        for part, overlay, count in zip(parts, overlays, counts, strict=True):
            fields = None if overlay is None else ctypes.byref(overlay.fields)
            library.sharded_infer_tier_find(
                self._lookup, part.tier.address, part.first_row, fields, values, count, places
            )
            places, values = places + 8 * count, values + 8 * count
        library.sharded_infer_tier_submit(self._lookup)

    def wait(self, deadline: float) -> None:
        """Returns when all rows are there.

        Args:
            deadline: until when, on the monotonic clock; never longer than `MOST_SECONDS`.

        Raises:
            RowReadError: a row cannot be read, or not in time; names table and file.
        """
        seconds = max(0.0, min(deadline - monotonic(), MOST_SECONDS))
        missing = _Missing()
        _library().sharded_infer_tier_wait(self._lookup, seconds, missing)
        if missing.why != _THERE:
            raise self._tiers[missing.tier].failure(missing, seconds)

    def close(self) -> None:
        """Lets the rows go; others may take their memory. Reads that nobody waits for end later."""
        self._close()


def _open(path: Path) -> tuple[int, bool]:
    """A file's descriptor, and whether it is read past the page cache."""
    flags = os.O_RDONLY | os.O_CLOEXEC
    try:
        return os.open(path, flags | os.O_DIRECT), True
    except OSError:
        # tmpfs before Linux 6.5, and some network file systems.
        return os.open(path, flags), False


def _library() -> ctypes.CDLL:
    if _LIBRARY is None:
        raise InputError("the package was built without a compiler: rows cannot lie in tiers")
    return _LIBRARY
