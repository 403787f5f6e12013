"""Counts the answered requests of a version: compiled where it can be, since every one passes here.

for each request:
    one more of code OK, its samples, the seconds of its phases and of the whole
    of each histogram of these one bucket; what the worker answered; ids outside
"""

import ctypes
from array import array
from bisect import bisect_left
from collections.abc import Sequence

from serving.metric_cells import MetricCells
from serving.metric_family import Detail, Family, FamilyBlock
from serving.native_request import LIBRARIES, AnsweredCells, Boundaries
from serving.request_families import (
    IDS_OUT_OF_RANGE,
    LATENCY_BOUNDARIES,
    PHASE_SECONDS,
    QUEUE_SECONDS,
    REQUEST_SECONDS,
    REQUESTS,
    SAMPLES,
)
from sharded_infer.errors import InputError

# Of one request: samples, the seconds of decode, queue, lookup, tower, encode and the whole, and
# ids outside their tables. A plain tuple: making anything better costs as much as counting it.
Answered = tuple[int, float, float, float, float, float, float, int]
_TIMED: tuple[tuple[Family, str | None], ...] = (
    (PHASE_SECONDS, "decode"),
    (QUEUE_SECONDS, None),
    (PHASE_SECONDS, "lookup"),
    (PHASE_SECONDS, "tower"),
    (PHASE_SECONDS, "encode"),
    (REQUEST_SECONDS, None),
)


class AnsweredCounter:
    """Where and how a version's answered requests are counted."""

    def __init__(
        self,
        cells: MetricCells,
        block: FamilyBlock,
        *,
        worker_requests: int,
        last_request: int,
        detail: Detail,
        native: bool | None = None,
    ) -> None:
        """Finds the cells once.

        Args:
            cells: the server's.
            block: where the version's families lie in them.
            worker_requests: the cell of the requests that a worker answered.
            last_request: the cell of when the last one was.
            detail: how much is counted.
            native: by compiled code, or by Python; None takes what is there.

        Raises:
            InputError: compiled code is asked for, but is not there.
        """
        if native and LIBRARIES is None:
            raise InputError("compiled counting is asked for, but was not built")
        self._cells = cells
        self._ok = block.cell(REQUESTS, "OK")
        self._samples = block.cell(SAMPLES)
        self._ids_out_of_range = block.cell(IDS_OUT_OF_RANGE)
        self._worker_requests = worker_requests
        self._last_request = last_request
        self._buckets = tuple(block.cell(family, value) for family, value in _TIMED)
        self._sums = tuple(
            first + family.buckets for first, (family, _) in zip(self._buckets, _TIMED, strict=True)
        )
        self._with_histograms = detail is not Detail.OFF
        use_native = LIBRARIES is not None if native is None else native
        self._count_natively = None
        if use_native and LIBRARIES is not None:
            self._count_natively = LIBRARIES[1].sharded_infer_count_answered
        self.set_boundaries(LATENCY_BOUNDARIES)

    def set_boundaries(self, whole: tuple[float, ...]) -> None:
        """Says what the boundaries of request_seconds are from now on.

        Args:
            whole: ascending.
        """
        self._boundaries = (*(LATENCY_BOUNDARIES,) * 5, whole)
        # Kept here, since compiled code has their addresses alone.
        self._arrays = [array("d", boundaries) for boundaries in self._boundaries]
        self._where = AnsweredCells(
            self._ok,
            self._samples,
            self._last_request,
            self._sums,
            self._with_histograms,
            self._worker_requests,
            self._ids_out_of_range,
            self._buckets,
            tuple(Boundaries(a.buffer_info()[0], len(a)) for a in self._arrays),
        )
        self._where_address = ctypes.addressof(self._where)

    def count(self, requests: Sequence[Answered], now: float) -> None:
        """Counts requests; the process's lock is held.

        Args:
            requests: each one's values.
            now: seconds since 1970.
        """
        if self._count_natively is None:
            self._count(requests, now)
            return
        values = array("d", requests[0])
        for request in requests[1:]:
            values.extend(request)
        self._count_natively(
            self._cells.own_address,
            self._where_address,
            values.buffer_info()[0],
            len(requests),
            now,
        )

    def _count(self, requests: Sequence[Answered], now: float) -> None:
        own = self._cells.own
        for samples, *seconds, ids_outside in requests:
            own[self._ok] += 1.0
            own[self._samples] += samples
            for cell, took in zip(self._sums, seconds, strict=True):
                own[cell] += took
            if not self._with_histograms:
                continue
            own[self._worker_requests] += 1.0
            own[self._ids_out_of_range] += ids_outside
            timed = zip(self._buckets, self._boundaries, seconds, strict=True)
            for first, boundaries, took in timed:
                own[first + bisect_left(boundaries, took)] += 1.0
        own[self._last_request] = now
