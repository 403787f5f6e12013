"""Logs slow requests with the reason, at a bounded rate."""

import logging
import threading

from serving.observability.request_timeline import RequestTimeline
from serving.observability.slow_request import SlowCause

_log = logging.getLogger("sharded_infer")
_LINES_PER_SECOND = 10.0


class SlowRequestLog:
    """Logs the slow requests of one process. Thread-safe."""

    def __init__(self, lines_per_second: float = _LINES_PER_SECOND) -> None:
        """Starts with a full budget of one second; `lines_per_second` also bounds a burst."""
        self._rate = lines_per_second
        self._tokens = lines_per_second
        self._filled: float | None = None
        self._left_out = 0
        self._lock = threading.Lock()

    def tell(self, request: RequestTimeline, slow_cause: SlowCause, now: float) -> bool:
        """Logs a request, at `now` on the monotonic clock; False, and counted, beyond the rate."""
        with self._lock:
            passed = 0.0 if self._filled is None else max(0.0, now - self._filled)
            self._tokens = min(self._rate, self._tokens + passed * self._rate)
            self._filled = now
            if self._tokens < 1.0:
                self._left_out += 1
                return False
            self._tokens -= 1.0
            left_out, self._left_out = self._left_out, 0
        _log.warning(
            "slow request to %s version %d, %.1f ms: %s: %s",
            request.model,
            request.version,
            request.whole_seconds * 1e3,
            slow_cause.phase,
            slow_cause.reason,
            extra=_fields(request, slow_cause, left_out),
        )
        return True


def _fields(request: RequestTimeline, slow_cause: SlowCause, left_out: int) -> dict[str, object]:
    fields: dict[str, object] = {
        "event": "slow_request",
        "model": request.model,
        "version": request.version,
        "request_id": request.request_id,
        "executor": request.executor,
        "phase": slow_cause.phase,
        "samples": request.samples,
        "requests_ahead": request.requests_ahead,
        "total_ms": _ms(request.whole_seconds),
        "phase_ms": _ms(slow_cause.seconds),
    }
    for phase in ("decode", "queue", "lookup", "tower", "encode"):
        fields[f"{phase}_ms"] = _ms(getattr(request, f"{phase}_seconds"))
    batch = request.batch
    if batch is not None:
        fields |= {
            "batch_requests": batch.requests,
            "batch_samples": batch.samples,
            "batch_padded_samples": batch.padded_samples,
            "alone_ms": _ms(batch.alone_seconds),
            "together_ms": _ms(batch.together_seconds),
            "batch_wall_ms": _ms(batch.usage.wall_seconds),
            "batch_cpu_ms": _ms(batch.usage.cpu_seconds),
            "minor_faults": batch.usage.minor_faults,
            "major_faults": batch.usage.major_faults,
            "involuntary_switches": batch.usage.switches,
        }
    if request.trace is not None:
        fields["trace_id"] = request.trace.trace_hex
    if left_out:
        fields["left_out"] = left_out
    return fields


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)
