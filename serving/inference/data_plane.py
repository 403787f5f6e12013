"""Predict calls from request to answer, in the same way for every transport.

take       compiled code reads and queues the usual calls among a transport's events
submit     others: header → version → usual message → compiled code
dispatch   merge → lookups and tower → answers, or a status: code, message, and when to retry
"""

import itertools
import threading
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic

from kernels.wording import counted
from serving.abi.calls import Sender
from serving.inference.batch_execution import BatchExecution, log_fields, show_queue
from serving.inference.call_batch import CallBatch
from serving.inference.predict_calls import PredictCalls, TakenCalls
from serving.inference.request_reports import RequestReports, TracedRequest
from serving.inference.shadows.shadow_thread import ShadowThread
from serving.inference.shadows.shadows import Served, Shadows
from serving.inference.unusual_calls import Arrival, Metadata, UnusualCalls
from serving.metrics.server_metrics import ServerMetrics
from serving.protocol.predict_method import PredictMethod
from serving.protocol.predict_request import PredictRequest
from serving.protocol.request_header import RequestHeader
from serving.routing.router import Route, Router
from serving.scheduler.dispatcher import Dispatcher
from serving.scheduler.scheduler import QueueLimits, Scheduler
from serving.shared_memory.regions import SharedMemory
from serving.status import Status, StatusCode, status_of
from serving.versions.served_versions import ServedVersions, Shares


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
        self._router = Router(store)
        self._metrics = metrics
        self._reports = reports
        self._shadows = shadows
        # Below zero, as compiled code counts upwards.
        self._trace_numbers = itertools.count(-1, -1)
        self.calls = CallsInProgress(metrics.in_flight)
        self.traces = reports is not None and reports.traces
        scheduler = Scheduler(slots=slots, limits=limits)
        self.compiled = PredictCalls(scheduler, memory)
        if self.traces and reports is not None:
            self.compiled.set_traced(reports.bound)
        self._execution = BatchExecution(
            self.compiled,
            changed=lambda count: self.calls.add_predict(count),
            memory=memory,
            reports=reports,
            shadows=shadows,
        )
        self._unusual = UnusualCalls(self.compiled, scheduler, memory=memory, shadows=shadows)
        self.dispatcher: Dispatcher[CallBatch] = Dispatcher(scheduler, self._execution)
        routes = self.compiled.routes
        store.on_change(
            lambda version: scheduler.add_queue(version.queue),
            lambda version: scheduler.remove_queue(version.queue),
        )
        store.on_change(routes.add, routes.remove)
        store.on_names(routes.set_names)
        self.shadow_thread: ShadowThread | None = None
        if shadows is not None:
            self.shadow_thread = ShadowThread(shadows, self.dispatcher)
            store.on_names(self._set_shadows)

    def take(
        self,
        events: int,
        count: int,
        methods: Sequence[PredictMethod | None],
        event_of: Callable[[int], tuple[int, Metadata]],
        *,
        sender: Sender = Sender.GRPC,
    ) -> Sequence[int]:
        """Takes the usual predict calls among a server's events, at the address of their structs.

        `event_of` gives an event's method and metadata by its position. Returns the positions of
        the other events; -1 - position: this call is to be traced.
        """
        taken: TakenCalls = self.compiled.take(sender, events, count)
        self.calls.add_predict(taken.queued)
        for traced in taken.traced:
            method, metadata = event_of(traced.event)
            if self._reports is not None and (name := methods[method]) is not None:
                begun = self._reports.begin(metadata, name, drawn=bool(traced.drawn))
                if begun is not None:
                    self._execution.traces[traced.trace] = begun
        for route in taken.routes:
            version = self.compiled.routes.version(route.route)
            if route.late:
                version.metrics.refused("deadline", route.late)
                late = StatusCode.DEADLINE_EXCEEDED.name
                version.metrics.failed(late, route.late_seconds, route.late)
            show_queue(version)
        for batch in taken.cancelled:
            self._execution.drop(batch)
        return taken.left

    def backlog(self) -> float:
        """Seconds to a deadline below which every call would be refused, to 8 ms; at most 2."""
        return self.compiled.backlog

    def submit(self, request: PredictRequest, arrival: Arrival) -> Status | None:
        """Queues a call that compiled code has not taken, and which it answers then.

        Returns the refusal if the call is not queued; else `dispatcher.work` must be called.
        """
        self.calls.add_predict(1)
        refusal = self._queue(request, arrival)
        if refusal is not None:
            self.calls.add_predict(-1)
        return refusal

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

    def _queue(self, request: PredictRequest, arrival: Arrival) -> Status | None:
        arrived = monotonic()
        traced = None
        if self._reports is not None:
            traced = self._reports.begin(arrival.metadata, arrival.method, drawn=arrival.drawn)
        header: RequestHeader | None = None
        route: Route | None = None
        trace = 0
        if traced is not None:
            trace = next(self._trace_numbers)
            self._execution.traces[trace] = traced
        try:
            header = request.header()
            chance = partial(self.compiled.chance, arrival.number, arrival.place)
            route = self._router.route(header, chance)
            self._unusual.queue(request, header, route, arrival, arrived=arrived, trace=trace)
            show_queue(route.version)
        except Exception as error:
            self._execution.traces.pop(trace, None)
            return self._refused(error, header, route, traced, arrived)
        return None

    def _refused(
        self,
        error: Exception,
        header: RequestHeader | None,
        route: Route | None,
        traced: TracedRequest | None,
        arrived: float,
    ) -> Status:
        version = None if route is None else route.version
        request_id = None if header is None else header.request_id
        status = status_of(error, lambda: log_fields(request_id, version, traced))
        if traced is not None and self._reports is not None:
            self._reports.refused(
                traced,
                header,
                version,
                code=status.code.name,
                error=status.message,
                began=arrived,
            )
        if version is None:
            # Clients' wrong names must not become an unbounded number of labels.
            self._metrics.unknown_failed(status.code.name)
            return status
        version.metrics.failed(status.code.name, monotonic() - arrived)
        return status

    def _set_shadows(self, served: Served, _shares: Shares) -> None:
        if self._shadows is not None:
            self._shadows.set_names(served)
            self.compiled.set_kept(self._shadows.share if self._shadows.any else 0.0)
