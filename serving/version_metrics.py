"""What a server counts of one version: its requests, its batches and its queue."""

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence

from serving.answered_counter import Answered, AnsweredCounter
from serving.executed_batches import ExecutedBatches
from serving.exemplars import Exemplars
from serving.lookup_metrics import LookupMetrics
from serving.metric_cells import MetricCells
from serving.metric_family import Detail, FamilyBlock
from serving.model_families import CREATED, LOADED, TABLE_BYTES, TABLE_HUGE_PAGE_BYTES
from serving.request_families import (
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
from serving.statistics import Duration, Totals
from serving.version_facts import FactCells, VersionFacts, latency_boundaries

__all__ = ["Answered", "VersionMetrics"]


class VersionMetrics:
    """One version's counters. Every method that counts takes the process's lock once.

    Attributes:
        block: where the version's families lie in the cells.
        facts: what the version is, for the page.
        exemplars: its traced requests.
        lookups: its lookups and scores; None: they are not counted.
    """

    def __init__(
        self,
        cells: MetricCells,
        block: FamilyBlock,
        worker_requests: int,
        detail: Detail = Detail.FULL,
    ) -> None:
        """Finds the cells once.

        Args:
            cells: the server's.
            block: where the version's families lie in them.
            worker_requests: the cell of the requests that a worker answered.
            detail: how much is counted.
        """
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
        self._lookups = LookupMetrics(cells, block)
        self.lookups = self._lookups if detail is Detail.FULL else None
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

    def describe(self, facts: VersionFacts) -> None:
        """Says what the version is, in this process, before it is asked.

        Args:
            facts: of the version.
        """
        self._boundaries = latency_boundaries(facts.objective_seconds)
        with self._cells.lock:
            self._answered.set_boundaries(self._boundaries)
            self._cells.own[self.block.cell(LATENCY_OBJECTIVE)] = facts.objective_seconds
            self.facts.write(facts)
        self._lookups.describe(facts.features)

    def answered_many(self, requests: Sequence[Answered], batch_samples: int = 0) -> None:
        """Counts the answered requests of a batch, and the batch by its size.

        Args:
            requests: at least one; the values of each are those of `Answered`.
            batch_samples: of the batch, where it had other requests too; 0: it had none.
        """
        now = time.time()
        with self._cells.lock:
            self._answered.count(requests, now)
            self._executed.count(requests, batch_samples)

    def exemplar(self, seconds: float, trace_id: bytes) -> None:
        """Shows a traced request beside the bucket that it is counted in; not for others.

        Args:
            seconds: from the decoded message to the encoded response, as it was counted.
            trace_id: the trace's 16 bytes.
        """
        if self._detail is Detail.OFF:
            return
        bucket = bisect_left(self._boundaries, seconds)
        now = time.time()
        with self._cells.lock:
            self.exemplars.put(bucket, seconds, trace_id, now)

    def slow(self, phase: str) -> None:
        """Counts a request that was slower than the slow-request threshold.

        Args:
            phase: what was to blame, one of `request_families.BLAMED`.
        """
        cell = self._slow[phase]
        with self._cells.lock:
            self._cells.own[cell] += 1.0

    def failed(self, code_name: str, whole: float) -> None:
        """Counts a request that was answered with an error.

        Args:
            code_name: the gRPC status code's name.
            whole: seconds from the decoded message to the error.
        """
        cell = self._codes[code_name]
        cells = self._cells
        with cells.lock:
            own = cells.own
            own[cell] += 1.0
            own[self._worker_requests] += 1.0
            own[self._failure_seconds] += whole

    def ran_batch(self, *, requests: int, samples: int, seconds: float, predicted: float) -> None:
        """Counts a batch that was run, be it of one request.

        Args:
            requests: its requests.
            samples: its samples.
            seconds: how long it took its run slot.
            predicted: how long that was expected to be; 0 where nothing was.
        """
        cells = self._cells
        detail = self._detail
        if detail is Detail.OFF:
            # Statistics need how many there were alone.
            with cells.lock:
                cells.own[self._batch_requests] += 1.0
            return
        requests_bucket = bisect_left(BATCH_REQUESTS_BOUNDARIES, requests)
        samples_bucket = bisect_left(BATCH_SAMPLES_BOUNDARIES, samples)
        with cells.lock:
            own = cells.own
            own[self._batch_requests + requests_bucket] += 1.0
            own[self._batch_requests + BATCH_REQUESTS.buckets] += requests
            own[self._batch_samples + samples_bucket] += 1.0
            own[self._batch_samples + BATCH_SAMPLES.buckets] += samples
            own[self._busy_seconds] += seconds
            own[self._predicted_seconds] += predicted
            if predicted > 0.0 and detail is Detail.FULL:
                ratio = seconds / predicted
                own[self._cost_ratio + bisect_left(COST_RATIO_BOUNDARIES, ratio)] += 1.0
                own[self._cost_ratio + COST_RATIO.buckets] += ratio

    def refused(self, reason: str) -> None:
        """Counts a request that was not run; `failed` counts its status code besides.

        Args:
            reason: one of `request_families.REFUSALS`.
        """
        cell = self._refusals[reason]
        cells = self._cells
        with cells.lock:
            cells.own[cell] += 1.0

    def queue(self, *, requests: int, samples: int) -> None:
        """Says what waits in this process now.

        Args:
            requests: how many.
            samples: of all of them.
        """
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
        """Says how long the request has waited that has waited longest.

        Args:
            seconds: so long; not believed where `queue` has said since that nothing waits.
        """
        cells = self._cells
        with cells.lock:
            waits = cells.own[self._queue_requests] > 0.0
            cells.own[self._queue_oldest] = seconds if waits else 0.0

    def loaded(self, flag: bool, *, created: float = 0.0) -> None:
        """Says whether the version is ready in this process; it is shown if it is in any.

        Args:
            flag: whether it is.
            created: when it was published, seconds since 1970.
        """
        cells = self._cells
        with cells.lock:
            cells.own[self.block.cell(LOADED)] = float(flag)
            cells.own[self.block.cell(CREATED)] = created if flag else 0.0

    def run_at(self, run_size: Callable[[int], int]) -> None:
        """Says at what size this process runs a batch, given its samples."""
        with self._cells.lock:
            self._executed.run_at(run_size)

    def clear(self) -> None:
        """Begins at zero, in all processes: another version is counted here from now on."""
        self._cells.clear(self.block.first, self._end + 1 - self.block.first)

    def tables(
        self, *, table_bytes: int, huge_page_bytes: int, rank_bytes: Sequence[int] = ()
    ) -> None:
        """Says what the version's tables take.

        Args:
            table_bytes: of their files.
            huge_page_bytes: of that in huge pages.
            rank_bytes: on each rank.
        """
        cells = self._cells
        with cells.lock:
            cells.own[self.block.cell(TABLE_BYTES)] = table_bytes
            cells.own[self.block.cell(TABLE_HUGE_PAGE_BYTES)] = huge_page_bytes
            self._lookups.placed(rank_bytes)

    def totals(self) -> Totals:
        """The totals of all processes; another's request may be counted in part."""
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
