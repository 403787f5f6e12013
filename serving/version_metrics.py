"""What a server counts of one version: its requests, its batches and its queue."""

import time
from bisect import bisect_left
from collections.abc import Iterable

from serving.metric_cells import MetricCells
from serving.metric_families import (
    BATCH_REQUESTS,
    BATCH_REQUESTS_BOUNDARIES,
    BATCH_SAMPLES,
    BATCH_SAMPLES_BOUNDARIES,
    BUSY_SECONDS,
    CODES,
    COST_PREDICTED_SECONDS,
    CREATED,
    IDS_OUT_OF_RANGE,
    LATENCY_BOUNDARIES,
    LOADED,
    PHASE_SECONDS,
    QUEUE_REQUESTS,
    QUEUE_SAMPLES,
    QUEUE_SECONDS,
    REFUSALS,
    REQUEST_SECONDS,
    REQUESTS,
    REQUESTS_REFUSED,
    SAMPLES,
    TABLE_BYTES,
    TABLE_HUGE_PAGE_BYTES,
    FamilyBlock,
)
from serving.statistics import Duration, Totals

# Of one request: samples, the seconds of decode, queue, lookup, tower, encode and the whole, and
# ids outside their tables. A plain tuple: making anything better costs as much as counting it.
Answered = tuple[int, float, float, float, float, float, float, int]
# Where a histogram's sum lies, from its first bucket; one bucket is above all boundaries.
_LATENCY_SUM = len(LATENCY_BOUNDARIES) + 1
_SAMPLES_SUM = len(BATCH_SAMPLES_BOUNDARIES) + 1
_REQUESTS_SUM = len(BATCH_REQUESTS_BOUNDARIES) + 1


class VersionMetrics:
    """One version's counters. Every method that counts takes the process's lock once.

    Attributes:
        block: where the version's families lie in the cells.
    """

    def __init__(self, cells: MetricCells, block: FamilyBlock, worker_requests: int) -> None:
        """Finds the cells once.

        Args:
            cells: the server's.
            block: where the version's families lie in them.
            worker_requests: the cell of the requests that a worker answered.
        """
        self._cells = cells
        self.block = block
        self._worker_requests = worker_requests
        # Only statistics report these two.
        self._failure_seconds = cells.allocate(1)
        self._last_request = cells.allocate(1)
        self._codes = {code: block.cell(REQUESTS, code) for code in CODES}
        self._ok = self._codes["OK"]
        self._refusals = {reason: block.cell(REQUESTS_REFUSED, reason) for reason in REFUSALS}
        self._whole = block.cell(REQUEST_SECONDS)
        self._decode = block.cell(PHASE_SECONDS, "decode")
        self._lookup = block.cell(PHASE_SECONDS, "lookup")
        self._tower = block.cell(PHASE_SECONDS, "tower")
        self._encode = block.cell(PHASE_SECONDS, "encode")
        self._queue_seconds = block.cell(QUEUE_SECONDS)
        self._samples = block.cell(SAMPLES)
        self._ids_out_of_range = block.cell(IDS_OUT_OF_RANGE)
        self._batch_requests = block.cell(BATCH_REQUESTS)
        self._batch_samples = block.cell(BATCH_SAMPLES)
        self._busy_seconds = block.cell(BUSY_SECONDS)
        self._predicted_seconds = block.cell(COST_PREDICTED_SECONDS)
        self._queue_requests = block.cell(QUEUE_REQUESTS)
        self._queue_samples = block.cell(QUEUE_SAMPLES)
        self._loaded = block.cell(LOADED)
        self._created = block.cell(CREATED)
        self._table_bytes = block.cell(TABLE_BYTES)
        self._huge_page_bytes = block.cell(TABLE_HUGE_PAGE_BYTES)

    def answered(
        self,
        *,
        samples: int,
        decode: float,
        queue: float,
        lookup: float,
        tower: float,
        encode: float,
        whole: float,
        ids_outside: int,
    ) -> None:
        """Counts a request that was answered with scores.

        Args:
            samples: its samples.
            decode: seconds of reading it.
            queue: seconds between that and the start of its batch.
            lookup: seconds of its batch's lookups.
            tower: seconds of its batch's tower.
            encode: seconds of writing its response.
            whole: seconds from the decoded message to the encoded response.
            ids_outside: its ids that were ignored or wrapped.
        """
        self.answered_many(((samples, decode, queue, lookup, tower, encode, whole, ids_outside),))

    def answered_many(self, requests: Iterable[Answered]) -> None:
        """Counts the answered requests of a batch.

        Args:
            requests: each one's values, in the order of `answered`'s arguments.
        """
        cells = self._cells
        now = time.time()
        with cells.lock:
            own = cells.own
            for samples, decode, queue, lookup, tower, encode, whole, ids_outside in requests:
                own[self._ok] += 1.0
                own[self._worker_requests] += 1.0
                own[self._samples] += samples
                # A histogram's bucket, then its sum.
                first = self._decode
                own[first + bisect_left(LATENCY_BOUNDARIES, decode)] += 1.0
                own[first + _LATENCY_SUM] += decode
                first = self._queue_seconds
                own[first + bisect_left(LATENCY_BOUNDARIES, queue)] += 1.0
                own[first + _LATENCY_SUM] += queue
                first = self._lookup
                own[first + bisect_left(LATENCY_BOUNDARIES, lookup)] += 1.0
                own[first + _LATENCY_SUM] += lookup
                first = self._tower
                own[first + bisect_left(LATENCY_BOUNDARIES, tower)] += 1.0
                own[first + _LATENCY_SUM] += tower
                first = self._encode
                own[first + bisect_left(LATENCY_BOUNDARIES, encode)] += 1.0
                own[first + _LATENCY_SUM] += encode
                first = self._whole
                own[first + bisect_left(LATENCY_BOUNDARIES, whole)] += 1.0
                own[first + _LATENCY_SUM] += whole
                if ids_outside:
                    own[self._ids_out_of_range] += ids_outside
            own[self._last_request] = now

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
        requests_bucket = bisect_left(BATCH_REQUESTS_BOUNDARIES, requests)
        samples_bucket = bisect_left(BATCH_SAMPLES_BOUNDARIES, samples)
        cells = self._cells
        with cells.lock:
            own = cells.own
            own[self._batch_requests + requests_bucket] += 1.0
            own[self._batch_requests + _REQUESTS_SUM] += requests
            own[self._batch_samples + samples_bucket] += 1.0
            own[self._batch_samples + _SAMPLES_SUM] += samples
            own[self._busy_seconds] += seconds
            own[self._predicted_seconds] += predicted

    def refused(self, reason: str) -> None:
        """Counts a request that was not run; `failed` counts its status code besides.

        Args:
            reason: one of `metric_families.REFUSALS`.
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
        cells = self._cells
        with cells.lock:
            cells.own[self._queue_requests] = requests
            cells.own[self._queue_samples] = samples

    def loaded(self, flag: bool, *, created: float = 0.0) -> None:
        """Says whether the version is ready in this process; it is shown if it is in any.

        Args:
            flag: whether it is.
            created: when it was published, seconds since 1970.
        """
        cells = self._cells
        with cells.lock:
            cells.own[self._loaded] = float(flag)
            cells.own[self._created] = created if flag else 0.0

    def exemplar(self, seconds: float, trace_id: bytes) -> None:
        """Names the trace of an answered request beside its latency.

        Args:
            seconds: from the decoded message to the encoded response.
            trace_id: 16 bytes.
        """

    def slow(self, phase: str) -> None:
        """Counts a slow request.

        Args:
            phase: what took most of its time, one of `slow_request.PHASES`.
        """

    def clear(self) -> None:
        """Begins at zero, in all processes: another version is counted here from now on."""
        self._cells.clear(self.block.first, self._last_request + 1 - self.block.first)

    def tables(self, *, table_bytes: int, huge_page_bytes: int) -> None:
        """Says what the version's tables take.

        Args:
            table_bytes: of their files.
            huge_page_bytes: of that in huge pages.
        """
        cells = self._cells
        with cells.lock:
            cells.own[self._table_bytes] = table_bytes
            cells.own[self._huge_page_bytes] = huge_page_bytes

    def totals(self) -> Totals:
        """The totals of all processes; another's request may be counted in part."""
        total = self._cells.total

        def seconds(histogram: int) -> float:
            return total(histogram + _LATENCY_SUM)

        ok = total(self._ok)
        failures = sum(total(cell) for cell in self._codes.values()) - ok
        decode, encode = seconds(self._decode), seconds(self._encode)
        queue, whole = seconds(self._queue_seconds), seconds(self._whole)
        batches = range(self._batch_requests, self._batch_requests + _REQUESTS_SUM)
        return Totals(
            samples=round(total(self._samples)),
            requests=round(ok),
            executions=round(sum(total(bucket) for bucket in batches)),
            last_request_ms=int(self._cells.largest(self._last_request) * 1000),
            success=Duration.of(ok, whole),
            failure=Duration.of(failures, total(self._failure_seconds)),
            queue=Duration.of(ok, queue),
            decode=Duration.of(ok, decode),
            infer=Duration.of(ok, max(0.0, whole - decode - queue - encode)),
            encode=Duration.of(ok, encode),
        )
