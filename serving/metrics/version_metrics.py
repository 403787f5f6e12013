"""Metrics of a version: its requests, its batches and its queue."""

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from serving.metrics.batch_counter import ExecutedBatches
from serving.metrics.cells import MetricCells
from serving.metrics.exemplars import Exemplars
from serving.metrics.families.family import Detail, FamilyBlock
from serving.metrics.families.model_families import (
    CREATED,
    HUGE_PAGES,
    IDS_MAPPED,
    IDS_UNKNOWN,
    LOADED,
    PRODUCTS,
    SHARE,
    SMALL_PAGES,
    TABLE_BYTES,
    TABLE_HUGE_PAGE_BYTES,
    TABLE_PAGE_BYTES,
)
from serving.metrics.families.request_families import (
    BATCH_REQUESTS,
    BATCH_REQUESTS_BOUNDARIES,
    BATCH_SAMPLES,
    BATCH_SAMPLES_BOUNDARIES,
    BLAMED,
    BUSY_SECONDS,
    CODES,
    COST_PREDICTED_SECONDS,
    COST_RATIO,
    COST_RATIO_BOUNDARIES,
    LATENCY_BOUNDARIES,
    LATENCY_OBJECTIVE,
    PHASE_SECONDS,
    QUEUE_OLDEST_SECONDS,
    QUEUE_REQUESTS,
    QUEUE_SAMPLES,
    QUEUE_SECONDS,
    REFUSALS,
    REQUEST_SECONDS,
    REQUESTS,
    REQUESTS_REFUSED,
    SAMPLES,
    SLOW_REQUESTS,
)
from serving.metrics.families.shadow_families import SHADOWING
from serving.metrics.lookups.lookup_metrics import LookupMetrics
from serving.metrics.lookups.mapped_ids import MappedIds
from serving.metrics.request_counter import AnsweredCounter
from serving.metrics.shadow_metrics import ShadowMetrics
from serving.metrics.totals import Duration, Totals
from serving.metrics.version_info import FactCells, VersionInfo, latency_boundaries

# Offset of a histogram's sum from its first bucket.
_REQUESTS_SUM, _SAMPLES_SUM = BATCH_REQUESTS.buckets, BATCH_SAMPLES.buckets
_RATIO_SUM = COST_RATIO.buckets


class VersionMetrics:
    """A version's counters. Every counting method takes the process's lock once.

    `lookups` and `shadows` are None where they are not counted.
    """

    def __init__(
        self,
        cells: MetricCells,
        block: FamilyBlock,
        worker_requests: int,
        detail: Detail = Detail.FULL,
    ) -> None:
        self._cells = cells
        self.block = block
        self._detail = detail
        self._worker_requests = worker_requests
        # Only statistics report these two.
        self._failure_seconds = cells.allocate(1)
        self._last_request = cells.allocate(1)
        self.facts = FactCells(cells)
        self.exemplars = Exemplars(cells, REQUEST_SECONDS.buckets)
        self._executed = ExecutedBatches(cells)
        self._end = cells.allocate(1)
        self.mapped_ids = MappedIds(
            cells, mapped=block.cell(IDS_MAPPED), unknown=block.cell(IDS_UNKNOWN)
        )
        self._lookups = LookupMetrics(cells, block, self.mapped_ids)
        self.lookups = self._lookups if detail is Detail.FULL else None
        self.shadows = ShadowMetrics(cells, block) if SHADOWING in block.families else None
        self._answered = AnsweredCounter(
            cells,
            block,
            worker_requests=worker_requests,
            last_request=self._last_request,
            detail=detail,
        )
        self._boundaries: tuple[float, ...] = LATENCY_BOUNDARIES
        self._codes = {code: block.cell(REQUESTS, code) for code in CODES}
        self._refusals = {reason: block.cell(REQUESTS_REFUSED, reason) for reason in REFUSALS}
        self._slow = {phase: block.cell(SLOW_REQUESTS, phase) for phase in BLAMED}
        self._batch_requests = block.cell(BATCH_REQUESTS)
        self._batch_samples = block.cell(BATCH_SAMPLES)
        self._busy_seconds = block.cell(BUSY_SECONDS)
        self._predicted_seconds = block.cell(COST_PREDICTED_SECONDS)
        self._cost_ratio = block.cell(COST_RATIO)
        self._queue_requests = block.cell(QUEUE_REQUESTS)
        self._queue_samples = block.cell(QUEUE_SAMPLES)
        self._queue_oldest = block.cell(QUEUE_OLDEST_SECONDS)

    def describe(self, facts: VersionInfo) -> None:
        """Sets the version's facts in this process, before its first request."""
        self._boundaries = latency_boundaries(facts.objective_seconds)
        with self._cells.lock:
            self._answered.describe(self._boundaries, facts.features)
            self._cells.own[self.block.cell(LATENCY_OBJECTIVE)] = facts.objective_seconds
            if facts.products:
                self._cells.own[self.block.cell(PRODUCTS, facts.products)] = 1.0
            self.facts.write(facts)
            self.mapped_ids.set_tables(facts.mapped, len(facts.features))
        self._lookups.reset()

    @property
    def answered_cells(self) -> tuple[int, int]:
        """Addresses of this process's cells and of an `AnsweredCells`, for `count_answered`."""
        return self._answered.addresses

    @property
    def lock(self) -> AbstractContextManager[bool]:
        """The process's lock, for `answered_cells`."""
        return self._cells.lock

    def answered(self, *, samples: int, decode: float, infer: float, encode: float) -> None:
        """Counts a batch whose requests compiled code has counted.

        Seconds of decode and encode are summed over the requests; `infer` is the batch's lookups
        and tower.
        """
        with self._cells.lock:
            self._executed.count(samples, decode, infer, encode)
            self.mapped_ids.count_unknown()

    def exemplar(self, seconds: float, trace_id: bytes) -> None:
        """Sets a traced request as the exemplar of its bucket, by its whole seconds as counted."""
        if self._detail is Detail.OFF:
            return
        bucket = bisect_left(self._boundaries, seconds)
        now = time.time()
        with self._cells.lock:
            self.exemplars.put(bucket, seconds, trace_id, now)

    def slow(self, phase: str) -> None:
        """Counts a request above the slow threshold, by its slowest phase, one of `BLAMED`."""
        self._cells.add(self._slow[phase])

    def failed(self, code_name: str, whole: float, count: int = 1) -> None:
        """Counts requests answered with an error, and their seconds up to it, summed (`whole`)."""
        with self._cells.lock:
            own = self._cells.own
            own[self._codes[code_name]] += count
            own[self._worker_requests] += count
            own[self._failure_seconds] += whole
            self.mapped_ids.count_unknown()

    def ran_batch(self, *, requests: int, samples: int, seconds: float, predicted: float) -> None:
        """Counts a batch by its seconds in a run slot and their prediction (0: none)."""
        cells = self._cells
        detail = self._detail
        if detail is Detail.OFF:
            # Statistics need only the number of batches.
            cells.add(self._batch_requests)
            return
        requests_bucket = bisect_left(BATCH_REQUESTS_BOUNDARIES, requests)
        samples_bucket = bisect_left(BATCH_SAMPLES_BOUNDARIES, samples)
        with cells.lock:
            own = cells.own
            own[self._batch_requests + requests_bucket] += 1.0
            own[self._batch_requests + _REQUESTS_SUM] += requests
            own[self._batch_samples + samples_bucket] += 1.0
            own[self._batch_samples + _SAMPLES_SUM] += samples
            own[self._busy_seconds] += seconds
            own[self._predicted_seconds] += predicted
            if predicted > 0.0 and detail is Detail.FULL:
                ratio = seconds / predicted
                own[self._cost_ratio + bisect_left(COST_RATIO_BOUNDARIES, ratio)] += 1.0
                own[self._cost_ratio + _RATIO_SUM] += ratio

    def refused(self, reason: str, count: int = 1) -> None:
        """Counts requests not run, by a reason of `REFUSALS`; `failed` counts their codes."""
        self._cells.add(self._refusals[reason], count)

    def queue(self, *, requests: int, samples: int) -> None:
        """Sets the requests and samples that wait in this process."""
        if self._detail is Detail.OFF:
            return
        cells = self._cells
        with cells.lock:
            own = cells.own
            own[self._queue_requests] = requests
            own[self._queue_samples] = samples
            if not requests:
                own[self._queue_oldest] = 0.0

    def oldest(self, seconds: float) -> None:
        """Sets the age of the oldest waiting request, unless the queue has become empty."""
        with self._cells.lock:
            waits = self._cells.own[self._queue_requests] > 0.0
            self._cells.own[self._queue_oldest] = seconds if waits else 0.0

    def loaded(self, flag: bool, *, created: float = 0.0) -> None:
        """Sets whether the version is ready in this process, and its publication (since 1970)."""
        with self._cells.lock:
            self._cells.own[self.block.cell(LOADED)] = float(flag)
            self._cells.own[self.block.cell(CREATED)] = created if flag else 0.0

    def shares(self, share: float) -> None:
        """Sets its share of the requests that name no version, 0 to 1."""
        self._cells.set(self.block.cell(SHARE), share)

    def run_at(self, run_size: Callable[[int], int]) -> None:
        """Sets the function from a batch's samples to its executed size in this process."""
        with self._cells.lock:
            self._executed.run_at(run_size)

    def clear(self) -> None:
        """Resets all processes' cells for another version."""
        self._cells.clear(self.block.first, self._end + 1 - self.block.first)

    def tables(
        self, *, table_bytes: int, huge_page_bytes: int, rank_bytes: Sequence[int] = ()
    ) -> None:
        """Sets the memory of the version's tables: file sizes, and the bytes in huge pages."""
        cells = self._cells
        with cells.lock:
            cells.own[self.block.cell(TABLE_BYTES)] = table_bytes
            cells.own[self.block.cell(TABLE_HUGE_PAGE_BYTES)] = huge_page_bytes
            small = max(0, table_bytes - huge_page_bytes)
            cells.own[self.block.cell(TABLE_PAGE_BYTES, SMALL_PAGES)] = small
            cells.own[self.block.cell(TABLE_PAGE_BYTES, HUGE_PAGES)] = huge_page_bytes
            self._lookups.placed(rank_bytes)

    def totals(self) -> Totals:
        """Totals of all processes; another process's request may be counted in part."""
        total = self._cells.total
        phase = {
            value: total(self.block.cell(PHASE_SECONDS, value) + PHASE_SECONDS.buckets)
            for value in PHASE_SECONDS.label_values
        }
        ok = total(self._codes["OK"])
        failures = sum(total(cell) for cell in self._codes.values()) - ok
        queue = total(self.block.cell(QUEUE_SECONDS) + QUEUE_SECONDS.buckets)
        whole = total(self.block.cell(REQUEST_SECONDS) + REQUEST_SECONDS.buckets)
        batches = range(self._batch_requests, self._batch_requests + BATCH_REQUESTS.buckets)
        infer = max(0.0, whole - phase["decode"] - queue - phase["encode"])
        return Totals(
            samples=round(total(self.block.cell(SAMPLES))),
            requests=round(ok),
            executions=round(sum(total(bucket) for bucket in batches)),
            last_request_ms=int(self._cells.largest(self._last_request) * 1000),
            success=Duration.of(ok, whole),
            failure=Duration.of(failures, total(self._failure_seconds)),
            queue=Duration.of(ok, queue),
            decode=Duration.of(ok, phase["decode"]),
            infer=Duration.of(ok, infer),
            encode=Duration.of(ok, phase["encode"]),
            batches=self._executed.totals(),
        )
