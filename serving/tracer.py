"""Traces of one process: which requests, and a thread of the lowest priority that sends them.

The thread of a request only keeps its timeline in a queue that is bounded; spans are made and sent
elsewhere, so that a collector that is slow, or gone, keeps nobody waiting. What does not fit is
dropped and counted.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from time import monotonic

from serving.background import lower_priority
from serving.request_timeline import RequestTimeline
from serving.trace_context import read_trace_context
from serving.trace_sampling import Draw, RequestTrace, TraceSampling

_log = logging.getLogger("sharded_infer")
_CAPACITY = 2048
# Requests sent at once. Making and encoding their spans keeps the interpreter's lock from others
# for about 20 µs each.
_AT_ONCE = 16
_PERIOD_SECONDS = 1.0
# At the end of a process, for what is still in the queue.
_LAST_SECONDS = 2.0
# Sends requests' spans, and says whether they were taken.
Send = Callable[[Sequence[RequestTimeline]], bool]


class Tracer:
    """Samples requests, and has their spans sent. Any thread may call; made after any fork."""

    def __init__(
        self,
        sampling: TraceSampling,
        draw: Draw,
        send: Send,
        *,
        on_dropped: Callable[[int], None] = lambda _: None,
        capacity: int = _CAPACITY,
        period_seconds: float = _PERIOD_SECONDS,
    ) -> None:
        """Begins with nothing to send; `start` begins to send.

        Args:
            sampling: which requests.
            draw: random bits.
            send: makes the spans and sends them; called on the tracer's own thread.
            on_dropped: told how many requests' spans were lost.
            capacity: requests that may wait to be sent.
            period_seconds: between sendings.
        """
        self._sampling = sampling
        self._draw = draw
        self._send = send
        self._on_dropped = on_dropped
        self._capacity = capacity
        self._period = period_seconds
        self._queue: deque[RequestTimeline] = deque()
        self._stopping = threading.Event()
        self._taken = True
        self._thread = threading.Thread(target=self._run, name="tracer", daemon=True)

    def begin(self, metadata: Iterable[tuple[str, str | bytes]]) -> RequestTrace | None:
        """Whether a request is traced, and under which ids.

        Args:
            metadata: what came with it: names in lower case, and values.
        """
        return self._sampling.decide(read_trace_context(metadata), self._draw)

    def record(self, request: RequestTimeline) -> None:
        """Keeps an answered request to be sent, or drops it where too many wait.

        Args:
            request: that is traced.
        """
        if len(self._queue) >= self._capacity:
            self._on_dropped(1)
        else:
            self._queue.append(request)

    def start(self) -> None:
        """Begins to send."""
        self._thread.start()

    def stop(self) -> None:
        """Sends what waits, for a short while, and ends."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_LAST_SECONDS)

    def _run(self) -> None:
        lower_priority()
        last = False
        while not last:
            last = self._stopping.wait(self._period)
            while self._queue:
                began = monotonic()
                self._send_some()
                # Half of a core at most, and never at one go.
                self._stopping.wait(monotonic() - began)

    def _send_some(self) -> None:
        requests = [self._queue.popleft() for _ in range(min(_AT_ONCE, len(self._queue)))]
        try:
            taken = self._send(requests)
        except Exception:
            # A bug of ours, or of a library, must not end the tracing, and never the serving.
            _log.exception("internal error in sending spans")
            taken = False
        if not taken:
            self._on_dropped(len(requests))
        # Said once, not at every sending.
        if self._taken and not taken:
            _log.warning("spans are not taken by the collector; requests are answered all the same")
        elif taken and not self._taken:
            _log.info("spans are taken by the collector again")
        self._taken = taken
