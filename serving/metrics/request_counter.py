"""Answered requests of a version, counted by compiled code.

For each request: code OK, samples, seconds of its phases and of the whole, a bucket of each
histogram of these, the worker's answered requests, and out-of-range ids.
"""

import ctypes
from array import array

from serving.abi.counting import AnsweredCells, Boundaries
from serving.metrics.cells import MetricCells
from serving.metrics.families.family import Detail, Family, FamilyBlock
from serving.metrics.families.request_families import (
    IDS_OUT_OF_RANGE,
    LATENCY_BOUNDARIES,
    PHASE_SECONDS,
    QUEUE_SECONDS,
    REQUEST_SECONDS,
    REQUESTS,
    SAMPLES,
)

_TIMED: tuple[tuple[Family, str | None], ...] = (
    (PHASE_SECONDS, "decode"),
    (QUEUE_SECONDS, None),
    (PHASE_SECONDS, "lookup"),
    (PHASE_SECONDS, "tower"),
    (PHASE_SECONDS, "encode"),
    (REQUEST_SECONDS, None),
)


class AnsweredCounter:
    """A version's answered requests."""

    def __init__(
        self,
        cells: MetricCells,
        block: FamilyBlock,
        *,
        worker_requests: int,
        last_request: int,
        detail: Detail,
    ) -> None:
        """Looks up the cells of the block; the other two are not part of it."""
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
        self.set_boundaries(LATENCY_BOUNDARIES)

    def set_boundaries(self, whole: tuple[float, ...]) -> None:
        """Sets the boundaries of request_seconds, ascending."""
        self._boundaries = (*(LATENCY_BOUNDARIES,) * 5, whole)
        # References for compiled code, which has only their addresses.
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

    @property
    def addresses(self) -> tuple[int, int]:
        """Addresses of the process's cells and of the structure that says which are counted."""
        return self._cells.own_address, ctypes.addressof(self._where)
