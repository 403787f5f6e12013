"""Runs batches of predict calls: lookups, tower, answers and counts."""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from math import inf
from time import monotonic

from serving.abi.scheduler import State
from serving.errors import CancelledError, DeadlineError
from serving.host.thread_usage import Reading, read_usage
from serving.inference.call_batch import CallBatch, CallFacts
from serving.inference.predict_calls import FinishedBatch, PredictCalls
from serving.inference.request_reports import (
    AnsweredCall,
    RequestReports,
    TracedRequest,
    short_id,
)
from serving.inference.shadows.shadow_request import ShadowRequest, copied_scores
from serving.inference.shadows.shadows import Shadows
from serving.observability.host_spans import HostSpan, traced_batch
from serving.protocol.infer_answer import Answer, score_bytes
from serving.protocol.readers.input_reader import InputReader
from serving.scheduler.refusals import DROPPED
from serving.scheduler.version_queue import VersionQueue
from serving.shared_memory.regions import SharedMemory
from serving.status import Status, status_of
from serving.versions.loaded_version import LoadedVersion
from sharded_infer.engines.executor import RequestResult, run_batch
from sharded_infer.errors import InternalError, RequestError
from sharded_infer.inputs.model_input import ModelInput

# By so much a host's clock may end a lookup early.
_SOON_SECONDS = 0.01
_log = logging.getLogger("sharded_infer")
# Metric labels of why a call left the queue.
REASONS = {
    State.EXPIRED: "expired",
    State.INFEASIBLE: "deadline",
    State.CANCELLED: "cancelled",
}


# As `FinishedBatch.long_answers`.
_Answers = list[tuple[int, Answer, str]]


class BatchExecution:
    """Runs batches for the dispatcher: any number at once, each on a thread.

    Attributes:
        traces: of traced calls, by number.
    """

    def __init__(
        self,
        calls: PredictCalls,
        *,
        changed: Callable[[int], None],
        memory: SharedMemory | None,
        reports: RequestReports | None,
        shadows: Shadows | None,
    ) -> None:
        """`changed` gets the number of calls that ended, below zero."""
        self._calls, self._changed = calls, changed
        self._memory, self._reports, self._shadows = memory, reports, shadows
        self.traces: dict[int, TracedRequest] = {}

    def begin(self, now: float) -> tuple[CallBatch | None, bool]:
        """Implements `Batches.begin`."""
        before = None
        if self._reports is not None:
            # Merging counts too.
            before, now = read_usage(), monotonic()
        batch, dropped, more = self._calls.begin(now)
        if batch is not None:
            batch.usage = before
        for left in dropped:
            self.drop(left)
        return batch, more

    def expire(self, now: float) -> None:
        """Implements `Batches.expire`."""
        for batch in self._calls.expire(now):
            self.drop(batch)

    def occupy(self, queue: VersionQueue, now: float) -> Callable[[], None] | None:
        """Implements `Batches.occupy`."""
        slot = self._calls.occupy(queue.address, now)
        if slot is None:
            return None
        return lambda: self._calls.end(slot, monotonic(), by_clock=True)

    def run(self, batch: CallBatch) -> None:
        """Implements `Batches.run`."""
        version, info = batch.version, batch.info
        calls, samples, predicted = info.calls, info.samples, info.predicted
        started = info.started
        answers: _Answers = []
        try:
            self._run(batch, answers)
            seconds = monotonic() - started
            version.metrics.ran_batch(
                requests=calls, samples=samples, seconds=seconds, predicted=predicted
            )
        except Exception:
            # A bug of ours must not keep calls from their answers.
            _log.exception("internal error in counting a batch")
        finally:
            self._end(batch)
            show_queue(version)
            # Once they are counted.
            for number, answer, encoding in answers:
                self._compress(number, answer, encoding)

    def drop(self, batch: CallBatch) -> None:
        """Ends calls that left the queue without being run."""
        words = DROPPED[batch.state]
        cancelled = batch.state is State.CANCELLED
        batch.version.metrics.refused(REASONS[batch.state], batch.count)
        show_queue(batch.version)
        self._fail(batch, CancelledError(words) if cancelled else DeadlineError(words))
        self._end(batch)

    def _end(self, batch: CallBatch) -> None:
        by_clock = batch.version.queue.policy.by_clock
        count = batch.count
        self._calls.end(batch.address, monotonic(), by_clock=by_clock)
        self._changed(-count)

    def _run(self, batch: CallBatch, answers: _Answers) -> None:
        model = batch.version.model
        hosts: list[HostSpan] = []
        try:
            before = batch.usage
            if before is None and self._reports is not None:
                before = read_usage()
            merged = batch.input()
            merging = monotonic() - batch.info.started
            model.zero_padding.look(merged)
            deadline = batch.info.deadline if model.is_front else inf
            trace = self._first_trace(batch) if batch.info.traced and model.is_front else None
            with nullcontext() if trace is None else traced_batch(trace.trace) as traced:
                hosts = hosts if traced is None else traced.hosts
                ran = run_batch(model, merged, deadline, may_default=True)
            usage = None if before is None else (before, read_usage())
        except DeadlineError as error:
            self._run_in_time(batch, error, hosts, answers)
        except Exception as error:
            if batch.count == 1:
                self._fail(batch, error, hosts)
                return
            # One call made the batch fail: each runs alone, so that the others are answered.
            while batch.count:
                self._run_part(self._calls.part(batch, [0]), answers)
        else:
            answers += self._finish(batch, ran, merging, usage, hosts)

    def _run_part(self, part: CallBatch, answers: _Answers) -> None:
        try:
            self._run(part, answers)
        finally:
            self._end(part)

    def _run_in_time(
        self,
        batch: CallBatch,
        error: DeadlineError,
        hosts: Sequence[HostSpan],
        answers: _Answers,
    ) -> None:
        """Fails expired calls after a batch's first deadline, and runs the rest.

        A lookup that took the time limit of the hosts file fails all.
        """
        soon = monotonic() + _SOON_SECONDS
        left = [position for position, call in enumerate(batch.calls()) if call.deadline > soon]
        if not left or len(left) == batch.count:
            self._fail(batch, error, hosts)
            return
        part = self._calls.part(batch, left)
        self._fail(batch, error, hosts)
        self._run_part(part, answers)

    def _first_trace(self, batch: CallBatch) -> TracedRequest | None:
        calls = (call for call in batch.calls() if call.trace in self.traces)
        return next((self.traces[call.trace] for call in calls), None)

    def _finish(
        self,
        batch: CallBatch,
        ran: RequestResult,
        merging: float,
        usage: tuple[Reading, Reading] | None,
        hosts: list[HostSpan],
    ) -> _Answers:
        """Answers a batch; returns the answers that Python compresses and sends."""
        version, metrics = batch.version, batch.version.metrics
        try:
            if ran.ids_unknown:
                version.reader.count_unknown(ran.ids_unknown)
            with metrics.lock:
                finished = self._calls.finish(batch, ran, merging, time.time())
        except Exception as error:
            self._fail(batch, error)
            return []
        refused = self._refuse_failed(batch, ran, finished) if finished.failed else set()
        kept: list[ShadowRequest] = []
        try:
            kept = self._kept(batch, ran, merging, refused)
            self._count(batch, ran, finished, merging)
            self._report(batch, ran, finished, usage, hosts, refused)
        except Exception:
            _log.exception("internal error in counting a batch")
        if self._shadows is not None:
            for request in kept:
                self._shadows.offer(request)
        return list(finished.long_answers())

    def _refuse_failed(
        self, batch: CallBatch, ran: RequestResult, finished: FinishedBatch
    ) -> set[int]:
        """Refuses calls whose outputs could not be written to shared memory; their positions."""
        refused = set(finished.failed)
        for position, call in enumerate(batch.calls()):
            if position not in refused:
                continue
            status = self._status(batch.version, self._fault_of_places(batch, ran, call), call)
            batch.version.metrics.failed(status.code.name, monotonic() - call.arrived)
            self._calls.refuse(batch, position, status)
            self._report_failure(batch, call, status)
        return refused

    def _fault_of_places(self, batch: CallBatch, ran: RequestResult, call: CallFacts) -> Exception:
        names = batch.version.model.spec.tower.outputs
        try:
            for output, span in call.places:
                data = score_bytes(ran.scores[output][call.first : call.first + call.samples])
                if self._memory is None:
                    raise InternalError("an output is in shared memory, which is not offered")
                self._memory.write(span, data, f"output {names[output]!r}")
        except Exception as error:
            return error
        return RequestError("shared memory of the outputs changed while they were written")

    def _count(
        self, batch: CallBatch, ran: RequestResult, finished: FinishedBatch, merging: float
    ) -> None:
        metrics = batch.version.metrics
        if finished.samples:
            metrics.answered(
                samples=batch.info.samples,
                decode=finished.decode_seconds,
                infer=merging + ran.lookup_seconds + ran.tower_seconds,
                encode=finished.encode_seconds,
            )
        if metrics.lookups is not None:
            metrics.lookups.looked_up(ran.work, ran.batch, ran.scores)

    def _report(
        self,
        batch: CallBatch,
        ran: RequestResult,
        finished: FinishedBatch,
        usage: tuple[Reading, Reading] | None,
        hosts: list[HostSpan],
        refused: set[int],
    ) -> None:
        reports = self._reports
        if reports is None or usage is None:
            return
        slow = reports.has_slow(batch.version, finished.slowest_seconds)
        if not slow and not batch.info.traced:
            return
        calls = [
            AnsweredCall(call, self.traces.pop(call.trace, None), counted)
            for position, (call, counted) in enumerate(
                zip(batch.calls(), finished.counted, strict=True)
            )
            if position not in refused
        ]
        reports.answered(batch.version, calls, ran, usage, hosts)

    def _kept(
        self, batch: CallBatch, ran: RequestResult, merging: float, refused: set[int]
    ) -> list[ShadowRequest]:
        if self._shadows is None or not batch.info.kept:
            return []
        kept = []
        for position, call in enumerate(batch.calls()):
            if position in refused or not call.message:
                continue
            place = slice(call.first, call.first + call.samples)
            kept.append(
                ShadowRequest(
                    batch.version,
                    call.message,
                    self._read_again(call),
                    call.samples,
                    copied_scores(batch.version, ran.scores, place),
                    merging + ran.lookup_seconds + ran.tower_seconds,
                    has_defaults=any(bags[place].any() for bags in ran.work.defaults.values()),
                )
            )
        return kept

    def _read_again(self, call: CallFacts) -> Callable[[InputReader], ModelInput]:
        if call.method.route and self._calls.read_body is not None:
            return partial(self._calls.read_body, call.message, call.json_bytes)
        return lambda reader: reader.read_message(call.message, form=call.method.format)

    def _fail(self, batch: CallBatch, error: Exception, hosts: Sequence[HostSpan] = ()) -> None:
        """Ends all calls of a batch with an error."""
        status = self._status(batch.version, error, next(batch.calls()))
        if self._reports is not None and batch.info.traced:
            for call in batch.calls():
                self._report_failure(batch, call, status, hosts)
        seconds = self._calls.fail(batch, status)
        batch.version.metrics.failed(status.code.name, seconds, batch.count)

    def _status(self, version: LoadedVersion, error: Exception, call: CallFacts) -> Status:
        traced = self.traces.get(call.trace)
        fields = partial(log_fields, call.request_id, version, traced)
        return status_of(error, fields)

    def _report_failure(
        self,
        batch: CallBatch,
        call: CallFacts,
        status: Status,
        hosts: Sequence[HostSpan] = (),
    ) -> None:
        traced = self.traces.pop(call.trace, None)
        if self._reports is not None and traced is not None:
            self._reports.failed(batch.version, call, traced, batch.info.started, status, hosts)

    def _compress(self, number: int, answer: Answer, encoding: str) -> None:
        try:
            if self._calls.compress is not None:
                self._calls.compress(number, answer, encoding)
        except Exception:
            # A bug of ours must not keep the rest of the batch from their answers.
            _log.exception("internal error in compressing an answer")


def log_fields(
    request_id: str | None, version: LoadedVersion | None, traced: TracedRequest | None
) -> dict[str, object]:
    """Fields that the log adds to an error; unknown arguments are None."""
    fields: dict[str, object] = {}
    if version is not None:
        fields |= {"model": version.model.name, "version": version.model.version}
    if request_id is not None:
        fields["request_id"] = short_id(request_id)
    if traced is not None:
        fields["trace_id"] = traced.trace.trace_hex
    return fields


def show_queue(version: LoadedVersion) -> None:
    """Updates the metrics of waiting calls, after a call came or went."""
    queue = version.queue
    version.metrics.queue(requests=len(queue), samples=queue.samples)
