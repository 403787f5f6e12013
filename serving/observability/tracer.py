"""Samples requests of one process, and sends their spans on a low-priority thread.

Only a tracing server imports this file: OpenTelemetry costs 15 MiB and a fifth of a second. A
request's thread only queues its timeline, for the SDK's batch processor, so a slow or lost
collector delays no request. Excess requests are dropped and counted.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import monotonic
from typing import cast

import opentelemetry.sdk.trace.export as sdk
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased
from opentelemetry.trace import SpanContext, TraceFlags

from serving.host.background import lower_priority
from serving.observability.request_timeline import RequestTimeline
from serving.observability.span_exporter import SpanExporter
from serving.observability.trace_context import RequestTrace, read_trace_context
from serving.observability.trace_settings import TraceSampling, TraceSettings

_log = logging.getLogger("sharded_infer")
_CAPACITY = 2048
# Requests sent at once. Making and encoding their spans keeps the interpreter's lock from others
# for about 20 µs each.
_AT_ONCE = 16
_PERIOD_SECONDS = 1.0
# At the end of a process, for the rest of the queue.
_LAST_SECONDS = 2.0
_NO_RESOURCE = Resource.get_empty()
# The processor reads only that a span is sampled.
_WAITING = SpanContext(1, 1, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
# Sends requests' spans; True if they were taken.
Send = Callable[[Sequence[RequestTimeline]], bool]


class Tracer:
    """Samples requests, and sends their spans. Thread-safe; create it after any fork."""

    def __init__(
        self,
        sampling: TraceSampling,
        send: Send,
        *,
        close: Callable[[], None] = lambda: None,
        on_dropped: Callable[[int], None] = lambda _: None,
        capacity: int = _CAPACITY,
        period_seconds: float = _PERIOD_SECONDS,
    ) -> None:
        """Starts the thread that sends spans, every `period_seconds` unless many requests wait.

        Args:
            send: makes and sends spans, on the tracer's thread.
            close: cancels a call of `send`; later ones fail.
            on_dropped: called with the number of requests whose spans were lost.
            capacity: of the queue, in requests.
        """
        self._follows_parent = sampling.follows_parent
        self._bound = TraceIdRatioBased(sampling.ratio).bound
        self._ids = RandomIdGenerator()
        self._on_dropped = on_dropped
        self._room = threading.Semaphore(capacity)
        self._exporter = _Exporter(send, close, on_dropped, self._room)
        self._processor = sdk.BatchSpanProcessor(
            self._exporter, capacity, period_seconds * 1e3, min(_AT_ONCE, capacity)
        )

    @property
    def bound(self) -> int:
        """Of 2^64 requests whose clients do not decide, the number that are traced."""
        return self._bound

    def begin(
        self, metadata: Iterable[tuple[str, str | bytes]], *, drawn: bool = False
    ) -> RequestTrace | None:
        """Ids of a request if it is traced, by its metadata with lower-case names, else None.

        With `drawn`, it is sampled already, and its client does not decide.
        """
        parent = read_trace_context(metadata)
        trace_id = self._ids.generate_trace_id() if parent is None else parent.trace_id
        if drawn:
            # Uniform among the sampled ids.
            limit = TraceIdRatioBased.TRACE_ID_LIMIT
            trace_id = trace_id & ~limit | (trace_id & limit) * self._bound >> 64
        # As the SDK's samplers, which would create four objects for each request.
        if parent is not None and self._follows_parent:
            sampled = parent.sampled
        else:
            sampled = trace_id & TraceIdRatioBased.TRACE_ID_LIMIT < self._bound
        if not sampled:
            return None
        return RequestTrace(trace_id, self._ids.generate_span_id(), parent)

    def record(self, request: RequestTimeline) -> None:
        """Queues a traced request to be sent, or drops it if too many wait."""
        if self._room.acquire(blocking=False):
            self._processor.on_end(_WaitingRequest(request))
        else:
            # The SDK's processor would drop the oldest, without a readable count.
            self._on_dropped(1)

    def stop(self) -> None:
        """Sends waiting requests for a short time, and stops."""
        self._exporter.stopping.set()
        # The SDK waits for 30 seconds.
        time_is_up = threading.Timer(_LAST_SECONDS, self._exporter.shutdown)
        time_is_up.daemon = True
        time_is_up.start()
        self._processor.shutdown()  # type: ignore[no-untyped-call]
        time_is_up.cancel()


def start_tracing(
    settings: TraceSettings, place: Mapping[str, int], on_dropped: Callable[[int], None]
) -> Tracer:
    """Starts tracing in this process, after any fork; raises as `SpanExporter`."""
    exporter = SpanExporter(settings.endpoint, place)
    return Tracer(settings.sampling, exporter.send, close=exporter.close, on_dropped=on_dropped)


class _WaitingRequest(ReadableSpan):
    """A traced request in the processor's queue, before it has spans."""

    def __init__(self, request: RequestTimeline) -> None:
        super().__init__("", _WAITING, resource=_NO_RESOURCE)
        self.request = request


class _Exporter(sdk.SpanExporter):
    """Sends waiting requests on the processor's thread; `stopping` ends its pauses."""

    def __init__(
        self,
        send: Send,
        close: Callable[[], None],
        on_dropped: Callable[[int], None],
        room: threading.Semaphore,
    ) -> None:
        self.stopping = threading.Event()
        self._send = send
        self._close = close
        self._on_dropped = on_dropped
        self._room = room
        self._taken = True

    def export(self, spans: Sequence[ReadableSpan]) -> sdk.SpanExportResult:
        requests = [one.request for one in cast("Sequence[_WaitingRequest]", spans)]
        self._room.release(len(requests))
        lower_priority()
        began = monotonic()
        taken = self._sent(requests)
        if not taken:
            self._on_dropped(len(requests))
        # Logged once, not for every call.
        if self._taken and not taken:
            _log.warning("spans are not taken by the collector; requests are answered all the same")
        elif taken and not self._taken:
            _log.info("spans are taken by the collector again")
        self._taken = taken
        # At most half of a core, and never in one go.
        self.stopping.wait(monotonic() - began)
        return sdk.SpanExportResult.SUCCESS if taken else sdk.SpanExportResult.FAILURE

    def shutdown(self) -> None:
        self._close()

    def _sent(self, requests: Sequence[RequestTimeline]) -> bool:
        try:
            return self._send(requests)
        except Exception:
            # A bug of ours, or of a library, must not end the tracing, and never the serving.
            _log.exception("internal error in sending spans")
            return False
