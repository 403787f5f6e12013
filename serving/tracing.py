"""Tracing of one process, put together; OpenTelemetry is imported here, and only when it is on."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from serving.trace_settings import TraceSettings
from serving.tracer import Tracer


@dataclass(frozen=True, slots=True)
class Tracing:
    """A tracer that runs, and what ends it.

    Attributes:
        tracer: samples and keeps requests.
        close: ends the connection to the collector.
    """

    tracer: Tracer
    close: Callable[[], None]

    def stop(self) -> None:
        """Sends what waits, for a short while, and ends."""
        self.tracer.stop()
        self.close()


def start_tracing(
    settings: TraceSettings, worker: int, on_dropped: Callable[[int], None]
) -> Tracing:
    """Begins to trace in this process; after any fork.

    Args:
        settings: which requests, and where to.
        worker: the number of this process.
        on_dropped: told how many requests' spans were lost.
    """
    # 15 MiB and a fifth of a second that a server without traces does not pay.
    from serving.span_exporter import SpanExporter

    # Seeded anew in every process: workers must not draw the same ids.
    draw = random.Random().getrandbits  # noqa: S311 - ids, not secrets
    exporter = SpanExporter(settings.endpoint, worker, draw)
    tracer = Tracer(settings.sampling, draw, exporter.send, on_dropped=on_dropped)
    tracer.start()
    return Tracing(tracer, exporter.close)
