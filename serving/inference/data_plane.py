"""Handles predict calls from request to answer, in the same way for every transport.

header → version → decode → a request in the version's queue
the dispatcher runs the request, alone or in a batch
encode, or a status: code, message, and when to retry
"""

import threading
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Any, TypeVar

from kernels.wording import counted
from serving.errors import DeadlineError, QueueFullError
from serving.inference.batch_execution import (
    DROPPED,
    BatchExecution,
    count_batch,
    count_dropped,
    show_queue,
)
from serving.inference.held_calls import HeldCalls
from serving.inference.predict_call import PredictCall, log_fields
from serving.inference.request_reports import RequestReports
from serving.inference.shadows.shadow_thread import ShadowThread
from serving.inference.shadows.shadows import Served, Shadows
from serving.metrics.server_metrics import ServerMetrics
from serving.protocol.codec import Codec
from serving.protocol.predict_method import PredictMethod
from serving.protocol.request_header import RequestHeader
from serving.protocol.request_tensors import RequestTensors
from serving.routing.router import Route, Router
from serving.scheduler.batcher import Batcher, QueueLimits
from serving.scheduler.dispatcher import Dispatcher
from serving.shared_memory.regions import SharedMemory
from serving.status import Status, StatusCode, status_of
from serving.versions.served_versions import ServedVersions, Shares

Metadata = Iterable[tuple[str, str | bytes]]
_FOREVER = float("inf")
Asked = TypeVar("Asked")
Answer = TypeVar("Answer")

_TOO_LATE = "the deadline cannot be met: more waits than can be answered"
_UNREACHABLE = Status(StatusCode.DEADLINE_EXCEEDED, _TOO_LATE)


class CallsInProgress:
    """Number of calls in progress; a draining server waits until it is zero. Thread-safe."""

    def __init__(self, changed: Callable[[int], None]) -> None:
        """Starts at zero; `changed` gets 1 and -1 for predict calls."""
        self._changed = changed
        self._lock = threading.Lock()
        self._count = 0

    @property
    def in_progress(self) -> int:
        """Calls that have a thread, or whose responses are not sent yet."""
        with self._lock:
            return self._count

    def add(self, change: int) -> None:
        """Counts one call more (1) or less (-1)."""
        with self._lock:
            self._count += change

    def add_predict(self, change: int) -> None:
        """Counts one predict call more (1) or less (-1)."""
        self.add(change)
        self._changed(change)


class DataPlane:
    """Answers predict calls with the loaded versions. Thread-safe.

    With `traces`, transports should pass requests' metadata.
    """

    def __init__(
        self,
        store: ServedVersions,
        metrics: ServerMetrics,
        *,
        slots: int,
        limits: QueueLimits,
        memory: SharedMemory | None = None,
        reports: RequestReports | None = None,
        shadows: Shadows | None = None,
    ) -> None:
        """Adds the queues of loaded versions, and of versions loaded later.

        Args:
            slots: batches that may run at once.
            memory: clients' shared memory; None if it is not offered.
            reports: reports on single requests; None if only metrics are kept.
            shadows: of the versions here; None: no request is scored twice.
        """
        self._memory = memory
        self._store = store
        self._router = Router(store)
        self._metrics = metrics
        self._reports = reports
        self._shadows = shadows
        self.calls = CallsInProgress(metrics.in_flight)
        self.traces = reports is not None and reports.traces
        batcher: Batcher[Any] = Batcher(slots=slots, limits=limits)
        self.held = HeldCalls(
            batcher,
            changed=self.calls.add_predict,
            show_queue=show_queue,
            outcome=self._outcome,
            answered=self._answered,
        )
        if reports is not None:
            self.held.set_traced(reports.bound)
        self.dispatcher: Dispatcher[Any] = Dispatcher(
            batcher,
            BatchExecution(reports, self.held, shadows),
            observe=count_batch,
            on_dropped=count_dropped,
            on_waiting=lambda call: show_queue(call.version),
        )
        store.on_change(
            lambda version: self.dispatcher.add_queue(version.queue),
            lambda version: self.dispatcher.remove_queue(version.queue),
        )
        store.on_change(self.held.versions.add, self.held.versions.remove)
        store.on_names(self.held.versions.set_names)
        self.shadow_thread: ShadowThread | None = None
        if shadows is not None:
            self.shadow_thread = ShadowThread(shadows, self.dispatcher)
            store.on_names(self._set_shadows)

    def submit(
        self,
        codec: Codec[Asked, Answer],
        request: Asked,
        reply: Callable[[Answer | Status], None],
        *,
        method: PredictMethod = PredictMethod.MODEL_INFER,
        time_remaining: float | None = None,
        metadata: Metadata = (),
        drawn: bool = False,
        number: int | None = None,
    ) -> PredictCall | None:
        """Queues a call. The caller must call `dispatcher.work` afterwards.

        Args:
            reply: called once, on any thread, with the answer or a status.
            time_remaining: seconds to the client's deadline; None if it has none.
            metadata: of the request; needed only if requests are traced.
            drawn: the request is sampled for tracing.
            number: of a call that compiled code has passed on, and may have routed by chance.

        Returns:
            The call, so that it can be cancelled; None if it has already been answered.
        """

        def done(call: PredictCall) -> None:
            reply(self._outcome(call))
            self._answered(call)

        call = self._begin(
            codec,
            request,
            method,
            time_remaining,
            metadata,
            drawn=drawn,
            number=number,
            on_done=done,
        )
        if isinstance(call, Status):
            reply(call)
            return None
        try:
            self.dispatcher.offer(call)
        except Exception as error:
            reply(self._refuse(error, call))
            return None
        return call

    def cancel(self, call: PredictCall) -> None:
        """Cancels a call whose client has gone; a running call is not interrupted."""
        self.dispatcher.cancel(call)

    def cancel_held(self, number: int) -> None:
        """Gives up a held call of this number, if there is one and it waits."""
        call = self.held.cancel(number)
        if call is not None:
            self.dispatcher.gave_up(call)

    def refuse_unread(self, limit: int) -> Status:
        """Refuses and counts an unread call, because `limit` requests are in progress."""
        code = StatusCode.RESOURCE_EXHAUSTED
        self._metrics.unknown_failed(code.name)
        return Status(code, f"in progress: {counted(limit, 'request')}; no more are taken in")

    def count_unread(self, code: StatusCode, count: int) -> None:
        """Counts calls that a transport has refused without their messages."""
        self._metrics.unknown_failed(code.name, count)

    def count_dropped(self, reason: str, count: int) -> None:
        """Counts connections or calls that a gRPC transport has dropped."""
        self._metrics.grpc_dropped(reason, count)

    def _begin(
        self,
        codec: Codec[Asked, Answer],
        request: Asked,
        method: PredictMethod,
        time_remaining: float | None,
        metadata: Metadata,
        *,
        drawn: bool = False,
        number: int | None = None,
        on_done: Callable[[PredictCall], None] | None = None,
    ) -> PredictCall | Status:
        arrived, shadows = monotonic(), self._shadows
        trace = None if self._reports is None else self._reports.begin(metadata, drawn=drawn)
        header: RequestHeader | None = None
        route: Route | None = None
        try:
            header = codec.header(request)
            route = self._router.route(header, self._chance(number))
            version = route.version
            outputs = header.output_positions(version.model.spec.tower.outputs)
            deadline = _deadline(arrived, time_remaining, header.timeout_us)
            # Under overload most calls are refused, so those are not decoded.
            if deadline != _FOREVER and self.dispatcher.deadline_unreachable(
                version.queue, deadline, header.priority
            ):
                version.metrics.refused("deadline")
                raise DeadlineError(_TOO_LATE)
            memory = RequestTensors(self._memory)
            for name, span in header.places.items():
                memory.check(span, f"output {name!r}")
            model_input = codec.decode(request, version.io, memory)
        except Exception as error:
            found = None if route is None else route.version
            status = status_of(error, lambda: log_fields(header, found, trace))
            if trace is not None and self._reports is not None:
                self._reports.refused(
                    trace,
                    header,
                    found,
                    method=method,
                    code=status.code.name,
                    error=status.message,
                    began=arrived,
                )
            if found is None:
                # Clients' wrong names must not become an unbounded number of labels.
                self._metrics.unknown_failed(status.code.name)
            else:
                found.metrics.failed(status.code.name, monotonic() - arrived)
            return status
        return PredictCall(
            version,
            header,
            outputs,
            model_input,
            codec=codec,
            memory=memory,
            method=method,
            arrived=arrived,
            deadline=deadline,
            size_bytes=codec.size_bytes(request) + memory.bytes_read,
            requests_ahead=self.dispatcher.waiting[0],
            trace=trace,
            label=route.label,
            message=None if shadows is None else shadows.kept(request, version, header, memory),
            on_done=on_done,
        )

    def _answered(self, call: PredictCall) -> None:
        if call.answered is not None and self._shadows is not None:
            self._shadows.offer(call.answered)

    def _set_shadows(self, served: Served, _shares: Shares) -> None:
        if self._shadows is not None:
            self._shadows.set_names(served)
            self.held.set_kept(self._shadows.share if self._shadows.any else 0.0)

    def _chance(self, number: int | None) -> Callable[[], int] | None:
        return None if number is None else lambda: self.held.chance(number)

    def _outcome(self, call: PredictCall) -> Any:
        return call.result if call.error is None else self._refuse(call.error, call)

    def _refuse(self, error: Exception, call: PredictCall) -> Status:
        metrics = call.version.metrics
        status = status_of(error, call.log_fields)
        if self._reports is not None:
            self._reports.failed(call, status.code.name, status.message)
        metrics.failed(status.code.name, monotonic() - call.arrived)
        if isinstance(error, QueueFullError):
            metrics.refused("queue_full")
        elif call.error is None and call.state in DROPPED:
            # Refused on admission; requests that left the queue have been counted already.
            metrics.refused(DROPPED[call.state])
        return status


def _deadline(arrived: float, time_remaining: float | None, timeout_us: int) -> float:
    deadline = _FOREVER if time_remaining is None else arrived + time_remaining
    return min(deadline, arrived + timeout_us / 1e6) if timeout_us else deadline
