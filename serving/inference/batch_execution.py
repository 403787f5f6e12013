"""Runs a batch of predict calls on the model, encodes the answers and counts them."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from time import monotonic, perf_counter
from typing import Any

import numpy as np

from kernels.native_library import address_of
from serving.errors import DeadlineError
from serving.host.thread_usage import Reading, read_usage
from serving.inference.held_batch import HeldAnswers, HeldBatch
from serving.inference.held_calls import HeldCalls
from serving.inference.predict_call import PredictCall
from serving.inference.request_reports import RequestReports
from serving.inference.shadows.shadow_request import ShadowRequest
from serving.inference.shadows.shadows import Shadows
from serving.metrics.version_metrics import Answered
from serving.observability.host_spans import traced_batch
from serving.scheduler.batcher import Batch
from serving.scheduler.dispatcher import complete
from serving.scheduler.queued_request import RequestState
from serving.versions.loaded_version import LoadedVersion
from sharded_infer.engines.executor import RequestResult, run_batch, split_result
from sharded_infer.errors import ShardedInferError

# By so much a host's clock may end a lookup early.
_SOON_SECONDS = 0.01
_log = logging.getLogger("sharded_infer")
# Metric labels of why a request left the queue.
DROPPED = {
    RequestState.EXPIRED: "expired",
    RequestState.INFEASIBLE: "deadline",
    RequestState.CANCELLED: "cancelled",
}


class BatchExecution:
    """Runs batches for the dispatcher: any number at once, each on a thread."""

    def __init__(
        self,
        reports: RequestReports | None,
        held: HeldCalls,
        shadows: Shadows | None = None,
    ) -> None:
        self._reports, self._held, self._shadows = reports, held, shadows

    def __call__(self, calls: Sequence[PredictCall | HeldBatch]) -> Sequence[Any]:
        """Runs calls of one version together (held calls of a batch as one).

        Returns each call's answer, or the exception in its place.
        """
        first = calls[0]
        if isinstance(first, HeldBatch):
            self._run_held(first)
            return [True]
        return self._run([call for call in calls if isinstance(call, PredictCall)])

    def _run_held(self, batch: HeldBatch) -> None:
        held, version = self._held, batch.version
        late: DeadlineError | None = None
        try:
            began = perf_counter()
            merged = held.merged(batch)
            merging = perf_counter() - began
            before = None if self._reports is None else read_usage()
            deadline = held.deadline(batch) if version.model.is_front else inf
            ran = None
            if merged is not None:
                version.model.zero_padding.look(merged)
                [ran] = run_batch(version.model, (merged,), deadline, may_default=True)
            usage = None if before is None else (before, read_usage())
        except DeadlineError as error:
            ran, late = None, error
        except Exception:
            # Each runs alone, so that faultless calls are answered.
            ran = None
        if ran is None:
            self._run_apart(held.apart(batch.handles), late)
            return
        if ran.default_tables:
            self._answer_apart(held.apart(batch.handles), batch.started, ran, usage, merging)
            return
        answers = held.answer(batch, ran, merging)
        kept: Sequence[ShadowRequest] = ()
        try:
            kept = self._kept(batch, ran, merging)
            self._count_held(batch, ran, answers, usage, merging)
        except Exception:
            # A bug of ours must not keep calls from their answers.
            _log.exception("internal error in counting a batch")
        finally:
            held.send(batch, answers)
        self._offer(kept)

    def _kept(
        self, batch: HeldBatch, ran: RequestResult, merging: float
    ) -> Sequence[ShadowRequest]:
        if self._shadows is None:
            return ()
        return self._held.kept(batch, ran, merging)

    def _offer(self, kept: Sequence[ShadowRequest]) -> None:
        if self._shadows is not None:
            for request in kept:
                self._shadows.offer(request)

    def _run_apart(self, calls: Sequence[PredictCall], late: DeadlineError | None) -> None:
        for call in calls:
            call.started = monotonic()
        _complete(calls, self._run(calls) if late is None else self._run_in_time(calls, late))

    def _answer_apart(
        self,
        calls: Sequence[PredictCall],
        started: float,
        ran: RequestResult,
        usage: tuple[Reading, Reading] | None,
        merging: float,
    ) -> None:
        """Answers calls of which only Python knows whose samples used default rows."""
        results: Sequence[Any]
        try:
            for call in calls:
                call.started = started
            whole = replace(ran, lookup_seconds=ran.lookup_seconds + merging)
            executions = split_result(whole, [call.model_input for call in calls])
            results = self._responses(calls, executions, usage)
        except Exception as error:
            results = [error] * len(calls)
        _complete(calls, results)

    def _count_held(
        self,
        batch: HeldBatch,
        ran: RequestResult,
        answers: HeldAnswers,
        usage: tuple[Reading, Reading] | None,
        merging: float,
    ) -> None:
        version, metrics = batch.version, batch.version.metrics
        if ran.ids_unknown:
            version.io.reader.count_unknown(ran.ids_unknown)
            of_samples = np.sum(list(ran.work.unknown.values()), axis=0, dtype=np.float64)
            first = np.cumsum(answers.counted[:, 0], dtype=np.int64)[:-1]
            answers.counted[:, -1] += np.add.reduceat(of_samples, [0, *first])
        metrics.answered_packed(
            address_of(answers.counted),
            batch.count,
            samples=batch.samples,
            decode=answers.decode_seconds,
            infer=merging + ran.lookup_seconds + ran.tower_seconds,
            encode=answers.encode_seconds,
        )
        if metrics.lookups is not None:
            metrics.lookups.looked_up(ran.work, ran.batch, ran.scores)
        reports = self._reports
        if reports is None or usage is None:
            return
        if reports.has_slow(version, answers.slowest_seconds):
            calls = self._held.described(batch.handles)
            for call in calls:
                call.started = batch.started
            counts = [(int(one[0]), *one[1:7], int(one[7])) for one in answers.counted.tolist()]
            reports.answered([(call, ran) for call in calls], counts, usage)

    def _run(self, calls: Sequence[PredictCall]) -> list[Any]:
        model = calls[0].version.model
        try:
            before = None if self._reports is None else read_usage()
            deadline = min(call.deadline for call in calls)
            inputs = [call.model_input for call in calls]
            trace = next((call.trace for call in calls if call.trace is not None), None)
            if trace is None or not model.is_front:
                executions = run_batch(model, inputs, deadline, may_default=True)
            else:
                with traced_batch(trace) as traced:
                    for call in calls:
                        call.hosts = traced.hosts
                    executions = run_batch(model, inputs, deadline, may_default=True)
            model.zero_padding.look(executions[0].batch)
            usage = None if before is None else (before, read_usage())
            return self._responses(calls, executions, usage)
        except DeadlineError as error:
            return self._run_in_time(calls, error)
        except Exception as error:
            if len(calls) == 1:
                return [error]
        # One call made the batch fail: each runs alone, so that the others are answered.
        return [result for call in calls for result in self._run([call])]

    def _run_in_time(self, calls: Sequence[PredictCall], error: DeadlineError) -> list[Any]:
        """Fails expired calls after a batch's first deadline, and runs the rest.

        A lookup that took the time limit of the hosts file fails all.
        """
        soon = monotonic() + _SOON_SECONDS
        left = [call for call in calls if call.deadline > soon]
        if len(left) == len(calls):
            return [error] * len(calls)
        for call in calls:
            if call.deadline <= soon:
                call.error = error
                complete(call)
        results = iter(self._run(left) if left else ())
        return [next(results) if call.deadline > soon else error for call in calls]

    def _responses(
        self,
        calls: Sequence[PredictCall],
        executions: Sequence[RequestResult],
        usage: tuple[Reading, Reading] | None,
    ) -> list[Any]:
        """Encodes and counts a batch's answers on one thread, while its caches are warm."""
        responses: list[Any] = []
        counts: list[Answered] = []
        told: list[tuple[PredictCall, RequestResult]] = []
        now = monotonic()
        for call, execution in zip(calls, executions, strict=True):
            began = now
            queued = max(0.0, call.started - call.decoded)
            try:
                responses.append(call.encode(execution, queued))
            except ShardedInferError as error:
                # This client's shared memory failed; the batch's other calls are answered.
                responses.append(error)
                continue
            call.keep(execution)
            now = monotonic()
            if execution.ids_unknown:
                call.version.io.reader.count_unknown(execution.ids_unknown)
            told.append((call, execution))
            counts.append(
                (
                    call.batch_size,
                    call.decoded - call.arrived,
                    queued,
                    execution.lookup_seconds,
                    execution.tower_seconds,
                    now - began,
                    now - call.arrived,
                    execution.ids_outside,
                )
            )
        metrics = calls[0].version.metrics
        if counts:
            whole = 0
            if len(counts) != len(calls):
                whole = sum(call.batch_size for call in calls)
            metrics.answered_many(counts, whole)
        if metrics.lookups is not None:
            first = executions[0]
            metrics.lookups.looked_up(first.work, first.batch, first.scores)
        if self._reports is not None and usage is not None:
            self._reports.answered(told, counts, usage)
        return responses


def _complete(calls: Sequence[PredictCall], results: Sequence[Any]) -> None:
    """Ends calls that are no longer held, each with its answer or error."""
    for call, result in zip(calls, results, strict=True):
        if call.done:
            continue
        if isinstance(result, Exception):
            call.error = result
        else:
            call.result = result
        complete(call)


def count_batch(batch: Batch[PredictCall | HeldBatch], seconds: float) -> None:
    """Counts a batch that held its run slot for `seconds`."""
    call = batch.requests[0]
    call.version.metrics.ran_batch(
        requests=sum(call.count for call in batch.requests),
        samples=sum(call.batch_size for call in batch.requests),
        seconds=seconds,
        predicted=batch.predicted,
    )
    show_queue(call.version)


def count_dropped(call: PredictCall | HeldBatch) -> None:
    """Counts requests that left the queue without being run."""
    call.version.metrics.refused(DROPPED[call.state], call.count)
    show_queue(call.version)


def show_queue(version: LoadedVersion) -> None:
    """Updates the metrics of waiting requests, after a request came or went."""
    queue = version.queue
    version.metrics.queue(requests=len(queue), samples=queue.samples)
