"""Predict calls from message to message: what every transport does with the bytes it got.

header → version → decode → a ticket in the version's lane
the dispatcher runs it, at once or with others
encode, or a status code, the words, and when to come again
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import monotonic

import grpc

from kernels.wording import counted
from serving.batch_run import DROPPED, BatchRun, count_batch, count_dropped, show_queue
from serving.batcher import Batcher, QueueLimits
from serving.call import Call, log_fields
from serving.dispatcher import Dispatcher
from serving.job import Job
from serving.lane import Ticket
from serving.metrics import Metrics
from serving.model_store import ModelStore
from serving.portable_decoder import parse_request
from serving.predict_message import parse_predict
from serving.predict_method import PredictMethod
from serving.refusals import DeadlineError, QueueFullError
from serving.request_header import RequestHeader, header_of, predict_header_of, read_header
from serving.request_reports import RequestReports
from serving.shared_memory import SharedMemory
from serving.shared_tensors import SharedTensors
from serving.snapshot import Snapshot
from serving.status import status_of
from serving.wire_form import WireForm

# gRPC's header for "come again in so many milliseconds" (proposal A6, client retries).
PUSHBACK = "grpc-retry-pushback-ms"
_FOREVER = float("inf")


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that is an error.

    Attributes:
        code: the gRPC status code.
        message: for people.
        retry_ms: when to come again, milliseconds; None: nothing is known.
    """

    code: grpc.StatusCode
    message: str
    retry_ms: int | None = None

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The trailing metadata that goes with it."""
        return () if self.retry_ms is None else ((PUSHBACK, str(self.retry_ms)),)


_TOO_LATE = "the deadline cannot be met: more waits than can be answered"
_HOPELESS = Refusal(grpc.StatusCode.DEADLINE_EXCEEDED, _TOO_LATE)


class Inference:
    """Answers predict calls from the loaded versions. Any thread may call."""

    def __init__(
        self,
        store: ModelStore,
        metrics: Metrics,
        *,
        slots: int,
        limits: QueueLimits,
        memory: SharedMemory | None = None,
        reports: RequestReports | None = None,
    ) -> None:
        """Takes in the versions that are loaded.

        Args:
            store: the loaded versions.
            metrics: the server's.
            slots: batches run side by side.
            limits: how much may wait.
            memory: the shared memory that clients have registered; None: that is not offered.
            reports: told of each request; None: nothing is told beside the counts.
        """
        self._memory = memory
        self._store = store
        self._metrics = metrics
        self._reports = reports
        # Whether transports should hand over requests' metadata.
        self.traces = reports is not None and reports.traces
        self.dispatcher = Dispatcher(
            Batcher(slots=slots, limits=limits),
            BatchRun(reports),
            observe=count_batch,
            on_dropped=count_dropped,
            on_waiting=show_queue,
        )
        store.on_change(
            lambda snapshot: self.dispatcher.add_lane(snapshot.lane),
            lambda snapshot: self.dispatcher.remove_lane(snapshot.lane),
        )

    def answer(
        self,
        message: bytes,
        time_remaining: float | None,
        watch: Callable[[Job], None],
        *,
        method: PredictMethod = PredictMethod.MODEL_INFER,
        metadata: Iterable[tuple[str, str | bytes]] = (),
    ) -> bytes | Refusal:
        """Answers a call on the calling thread, which waits where it must.

        Args:
            message: a serialized request.
            time_remaining: seconds to the client's deadline; None: it has none.
            watch: told the job before it waits, so that it can be cancelled.
            method: by which it came.
            metadata: what came with it, where requests are traced.

        Returns:
            The serialized response, or why there is none.
        """
        job = self._begin(message, time_remaining, None, method, metadata)
        if isinstance(job, Refusal):
            return job
        watch(job)
        try:
            self.dispatcher.run(job)
        except Exception as error:
            return self._refuse(error, job)
        return self._outcome(job)

    def submit(
        self,
        message: bytes,
        time_remaining: float | None,
        reply: Callable[[bytes | Refusal], None],
        *,
        method: PredictMethod = PredictMethod.MODEL_INFER,
        metadata: Iterable[tuple[str, str | bytes]] = (),
    ) -> Job | None:
        """Takes a call in; `dispatcher.work` is to be called after.

        Args:
            message: a serialized request.
            time_remaining: seconds to the client's deadline; None: it has none.
            reply: called once with the serialized response or why there is none, on any thread.
            method: by which it came.
            metadata: what came with it, where requests are traced.

        Returns:
            The job, to cancel it by; None: it has been answered.
        """
        job = self._begin(
            message, time_remaining, lambda done: reply(self._outcome(done)), method, metadata
        )
        if isinstance(job, Refusal):
            reply(job)
            return None
        try:
            self.dispatcher.offer(job)
        except Exception as error:
            reply(self._refuse(error, job))
            return None
        return job

    def refuse_unread(self, limit: int) -> Refusal:
        """Refuses a call without looking at it, counted: too many are in progress.

        Args:
            limit: how many may be.
        """
        code = grpc.StatusCode.RESOURCE_EXHAUSTED
        self._metrics.unknown_failed(code.name)
        return Refusal(code, f"in progress: {counted(limit, 'request')}; no more are taken in")

    def refuse_hopeless(self, time_remaining: float | None) -> Refusal | None:
        """Refuses a call without looking at it, counted, if no model could answer in time.

        Args:
            time_remaining: seconds to the client's deadline; None: it has none.

        Returns:
            None: it may be answered.
        """
        if time_remaining is None or not self.dispatcher.is_hopeless(time_remaining):
            return None
        self._metrics.unknown_failed(_HOPELESS.code.name)
        return _HOPELESS

    def _begin(
        self,
        message: bytes,
        time_remaining: float | None,
        on_done: Callable[[Job], None] | None,
        method: PredictMethod,
        metadata: Iterable[tuple[str, str | bytes]],
    ) -> "Job | Refusal":
        started = monotonic()
        trace = None if self._reports is None else self._reports.begin(metadata)
        header: RequestHeader | None = None
        snapshot: Snapshot | None = None
        try:
            header = _header_of(message, method.form)
            snapshot = self._store.get(header.model_name, header.model_version)
            requested = header.output_positions(snapshot.model.spec.tower.outputs)
            deadline = _deadline(started, time_remaining, header.timeout_us)
            # Under overload most are refused: what cannot be answered is not read.
            if deadline != _FOREVER and self.dispatcher.is_too_late(
                snapshot.lane, deadline, header.priority
            ):
                snapshot.metrics.refused("deadline")
                raise DeadlineError(_TOO_LATE)
            shared = SharedTensors(self._memory)
            for name, span in header.places.items():
                shared.check(span, f"output {name!r}")
            predicts = method.form is WireForm.PREDICT
            decoder = snapshot.predict_decoder if predicts else snapshot.decoder
            model_input = decoder.decode(message, shared)
        except Exception as error:
            code, words = status_of(error, lambda: log_fields(header, snapshot, trace))
            if trace is not None and self._reports is not None:
                self._reports.refused(
                    trace,
                    header,
                    snapshot,
                    method=method,
                    code=code.name,
                    error=words,
                    began=started,
                )
            if snapshot is None:
                # A client's wrong names must not become labels without bound.
                self._metrics.unknown_failed(code.name)
            else:
                snapshot.metrics.failed(code.name, monotonic() - started)
            return Refusal(code, words)
        call = Call(
            snapshot,
            header,
            requested,
            model_input,
            method=method,
            shared=shared,
            started=started,
            requests_ahead=self.dispatcher.waiting[0],
            trace=trace,
        )
        ticket = Ticket(
            snapshot.lane,
            samples=model_input.batch_size,
            arrived=started,
            deadline=deadline,
            size_bytes=len(message) + shared.bytes_read,
            priority=header.priority,
        )
        return Job(call, ticket, on_done)

    def _outcome(self, job: Job) -> bytes | Refusal:
        if job.error is not None:
            return self._refuse(job.error, job)
        response: bytes = job.result
        return response

    def _refuse(self, error: Exception, job: Job) -> Refusal:
        call: Call = job.work
        metrics = call.snapshot.metrics
        code, words = status_of(error, call.log_fields)
        if self._reports is not None:
            self._reports.failed(call, code.name, words, started=job.started)
        metrics.failed(code.name, monotonic() - call.started)
        retry = None
        if isinstance(error, QueueFullError):
            metrics.refused("queue_full")
            retry = math.ceil(error.retry_seconds * 1e3)
        elif job.error is None and job.ticket.state in DROPPED:
            # Refused at the door; what left the queue has been counted as it left.
            metrics.refused(DROPPED[job.ticket.state])
        return Refusal(code, words, retry)


def _header_of(message: bytes, form: WireForm) -> RequestHeader:
    header = read_header(message, form)
    if header is not None:
        return header
    if form is WireForm.PREDICT:
        return predict_header_of(parse_predict(message))
    return header_of(parse_request(message))


def _deadline(started: float, time_remaining: float | None, timeout_us: int) -> float:
    deadline = _FOREVER if time_remaining is None else started + time_remaining
    return min(deadline, started + timeout_us / 1e6) if timeout_us else deadline
