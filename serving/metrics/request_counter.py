"""Answered requests of a version, counted by compiled code.

For each request: code OK, samples, seconds of its phases and of the whole, a bucket of each
histogram of these, the worker's answered requests, and out-of-range ids. For each batch: samples
with an empty bag of a feature.
"""

import ctypes
from array import array
from collections.abc import Sequence

from serving.abi.counting import AnsweredCells, Boundaries
from serving.metrics.cells import MetricCells
from serving.metrics.families.family import Detail, Family, FamilyBlock
from serving.metrics.families.model_families import EMPTY_BAGS
from serving.metrics.families.request_families import (
    IDS_OUT_OF_RANGE,
    LATENCY_BOUNDARIES,
    PHASE_SECONDS,
    QUEUE_SECONDS,
    REQUEST_SECONDS,
    REQUESTS,
    SAMPLES,
)
from serving.metrics.version_info import named_places

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
        self._empty_bags = block.cell(EMPTY_BAGS) if detail is Detail.FULL else None
        self.describe(LATENCY_BOUNDARIES, ())

    def describe(self, whole: tuple[float, ...], features: Sequence[str]) -> None:
        """Sets the boundaries of request_seconds, ascending, and the features of empty bags.

        `features` are those of `VersionInfo`: one of several tables counts in the first.
        """
        self._boundaries = (*(LATENCY_BOUNDARIES,) * 5, whole)
        # References for compiled code, which has only their addresses.
        self._arrays = [array("d", boundaries) for boundaries in self._boundaries]
        first, places = self._empty_bags or 0, named_places(features)
        self._bags = array(
            "q", (first + places.pop(name) if name in places else -1 for name in features)
        )
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
            self._bags.buffer_info()[0] if features and self._empty_bags is not None else None,
        )

    @property
    def addresses(self) -> tuple[int, int]:
        """Addresses of the process's cells and of the structure that says which are counted."""
        return self._cells.own_address, ctypes.addressof(self._where)
