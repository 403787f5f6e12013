"""Rows of one lookup in tables with tiers."""

import ctypes
import weakref
from collections.abc import Sequence
from time import monotonic

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from kernels.abi import tiers as abi
from kernels.native_library import address_of
from kernels.row_overlay import RowOverlay
from kernels.tiers.row_tier import MOST_SECONDS, TierPart


class StartedRows:
    """Rows of one lookup: in memory, or being read from files.

    `places` is uint64 `[N]`, the address of each id's row; to be read between `wait` and `close`.
    """

    __slots__ = ("__weakref__", "_close", "_kept", "_lookup", "_tiers", "places")

    def __init__(
        self,
        parts: Sequence[TierPart],
        overlays: Sequence[RowOverlay | None],
        ids: Tensor,
        counts: Sequence[int],
    ) -> None:
        """Starts to read the rows that are not in memory.

        Args:
            parts: one for each feature.
            overlays: changed rows of each feature's part, which stand in front of its rows.
            ids: int64 `[N]`, contiguous, all inside their tables: those of each feature in turn.
            counts: of each feature's ids.
        """
        self.places: NDArray[np.uint64] = np.empty(len(ids), np.uint64)
        # Several features may be of one table: a tier's number is that of its feature.
        self._tiers = [part.tier for part in parts]
        self._kept = overlays, ids
        self._lookup: int = abi.tier_lookup()
        self._close = weakref.finalize(self, abi.tier_release, self._lookup)
        self._close.atexit = False
        places, values = address_of(self.places), ids.data_ptr()
        for part, overlay, count in zip(parts, overlays, counts, strict=True):
            fields = None if overlay is None else ctypes.byref(overlay.fields)
            abi.tier_find(
                self._lookup, part.tier.address, part.first_row, fields, values, count, places
            )
            places, values = places + 8 * count, values + 8 * count
        abi.tier_submit(self._lookup)

    def wait(self, deadline: float) -> None:
        """Waits for all rows, until `deadline` (monotonic) and at most `MOST_SECONDS`.

        Raises RowReadError if a row cannot be read, or not in time; names table and file.
        """
        seconds = max(0.0, min(deadline - monotonic(), MOST_SECONDS))
        missing = abi.MissingRow()
        abi.tier_wait(self._lookup, seconds, missing)
        if missing.why != abi.Missing.THERE:
            raise self._tiers[missing.tier].failure(missing, seconds)

    def close(self) -> None:
        """Releases the rows' memory. Reads without a waiter end later."""
        self._close()
