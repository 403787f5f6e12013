"""Predict calls from request to answer, in the same way for every transport.

take       compiled code reads and queues the usual calls among a transport's events
submit     others: header → version → decode → the version's queue
dispatch   merge → lookups and tower → answers, or a status: code, message, and when to retry
"""

import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from time import monotonic
from typing import NamedTuple, TypeVar

from kernels.wording import counted
from serving.abi.calls import Sender
from serving.errors import DeadlineError
from serving.inference.batch_execution import BatchExecution, Reply, log_fields, show_queue
from serving.inference.call_batch import CallBatch
from serving.inference.predict_calls import PredictCalls, ReadCall, TakenCalls
from serving.inference.request_reports import RequestReports, TracedRequest
from serving.inference.shadows.shadow_thread import ShadowThread
from serving.inference.shadows.shadows import Served, Shadows
from serving.metrics.server_metrics import ServerMetrics
from serving.protocol.codec import Codec
from serving.protocol.infer_answer import Answer
from serving.protocol.predict_method import PredictMethod
from serving.protocol.request_header import RequestHeader
from serving.protocol.request_tensors import RequestTensors
from serving.routing.router import Route, Router
from serving.scheduler.dispatcher import Dispatcher
from serving.scheduler.scheduler import QueueLimits, Scheduler
from serving.shared_memory.regions import SharedMemory
from serving.status import Status, StatusCode, status_of
from serving.versions.served_versions import ServedVersions, Shares

Metadata = Iterable[tuple[str, str | bytes]]
_FOREVER = float("inf")
Asked = TypeVar("Asked")

_TOO_LATE = "the deadline cannot be met: more waits than can be answered"


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


class Arrival(NamedTuple):
    """How a call came.

    Attributes:
        time_remaining: seconds to the client's deadline; None if it has none.
        metadata: of the request; needed only if requests are traced.
        drawn: the request is sampled for tracing.
        number: of a transport's call, whose answer compiled code sends; None: `reply` gets it.
        place: of a message in its stream.
    """

    method: PredictMethod = PredictMethod.MODEL_INFER
    time_remaining: float | None = None
    metadata: Metadata = ()
    drawn: bool = False
    number: int | None = None
    place: int = 0


_USUAL = Arrival()


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
        self._router = Router(store)
        self._metrics = metrics
        self._reports = reports
        self._shadows = shadows
        self._numbers = itertools.count(1)
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

    def submit(
        self,
        codec: Codec[Asked],
        request: Asked,
        reply: Callable[[Answer | Status], None],
        arrival: Arrival = _USUAL,
    ) -> int | None:
        """Queues a call that compiled code has not taken. `dispatcher.work` must be called then.

        Args:
            reply: called once, on any thread, with the answer or a status; with a refusal alone if
                compiled code sends the answer.

        Returns:
            A number for `cancel`, unless it has been answered already or has a number.
        """
        self.calls.add_predict(1)
        own = arrival.number is None
        number = next(self._numbers) if arrival.number is None else arrival.number
        refusal = self._queue(codec, request, reply, arrival, number)
        if refusal is None:
            return number if own else None
        try:
            reply(refusal)
        finally:
            self.calls.add_predict(-1)
        return None

    def cancel(self, number: int) -> None:
        """Cancels a call by `submit`'s number; a running call is not interrupted."""
        batch = self.compiled.cancel(number)
        if batch is not None:
            self._execution.drop(batch)

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

    def _queue(
        self,
        codec: Codec[Asked],
        request: Asked,
        reply: Callable[[Answer | Status], None],
        arrival: Arrival,
        number: int,
    ) -> Status | None:
        """Reads and queues a call; the refusal, if it is refused."""
        arrived = monotonic()
        traced = None
        if self._reports is not None:
            traced = self._reports.begin(arrival.metadata, arrival.method, drawn=arrival.drawn)
        header: RequestHeader | None = None
        route: Route | None = None
        trace = 0 if traced is None else next(self._trace_numbers)
        own = arrival.number is None
        try:
            header = codec.header(request)
            route = self._router.route(header, self._chance(arrival))
            version, names = route.version, route.version.model.spec.tower.outputs
            positions = header.output_positions(names)
            deadline = _deadline(arrived, arrival.time_remaining, header.timeout_us)
            # Under overload most calls are refused, so those are not decoded.
            scheduler = self.dispatcher.scheduler
            if (
                deadline != _FOREVER
                and scheduler.requests
                and scheduler.deadline_unreachable(
                    version.queue, deadline, header.priority, arrived
                )
            ):
                version.metrics.refused("deadline")
                raise DeadlineError(_TOO_LATE)
            memory = RequestTensors(self._memory)
            for name, span in header.places.items():
                memory.check(span, f"output {name!r}")
            with self.compiled.routes.reading(version) as address:
                model_input = codec.decode(request, version.reader, memory)
                kept = None
                if self._shadows is not None:
                    kept = self._shadows.kept(request, version, header, memory)
                call = ReadCall(
                    method=arrival.method,
                    header=header,
                    model_input=model_input,
                    number=number,
                    by_python=own,
                    arrived=arrived,
                    deadline=deadline,
                    size_bytes=codec.size_bytes(request) + memory.bytes_read,
                    outputs=bytes(
                        (1 + codec.is_binary(request, name)) if position in positions else 0
                        for position, name in enumerate(names)
                    ),
                    trace=trace,
                    label=route.label,
                    message=kept if isinstance(kept, bytes) and not own else None,
                    places=[
                        (position, header.places[names[position]])
                        for position in positions
                        if names[position] in header.places
                    ],
                )
                if own:
                    self._execution.replies[number] = Reply(reply, codec, kept)
                if traced is not None:
                    self._execution.traces[trace] = traced
                refused = self.compiled.offer(
                    call, address, version.reader.mapped_tables, monotonic()
                )
            if refused is not None:
                version.metrics.refused(refused.reason)
                raise refused.error
            show_queue(version)
        except Exception as error:
            self._execution.replies.pop(number if own else 0, None)
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

    def _chance(self, arrival: Arrival) -> Callable[[], int] | None:
        number = arrival.number
        return None if number is None else lambda: self.compiled.chance(number, arrival.place)


def _deadline(arrived: float, time_remaining: float | None, timeout_us: int) -> float:
    deadline = _FOREVER if time_remaining is None else arrived + time_remaining
    return min(deadline, arrived + timeout_us / 1e6) if timeout_us else deadline
