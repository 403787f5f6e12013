"""Errors of refused requests."""

from serving.errors import DeadlineError, QueueFullError

_LEAST_RETRY_SECONDS = 0.001


def deadline_passed() -> DeadlineError:
    """The deadline passed before the request could be queued."""
    return DeadlineError("the request's deadline had passed when it could have been queued")


def deadline_unreachable(*, left: float, expected: float) -> DeadlineError:
    """The deadline is in `left` seconds, and the answer expected in `expected`."""
    return DeadlineError(
        f"the deadline cannot be met: {left * 1e3:.3g} ms are left, an answer would take about "
        f"{expected * 1e3:.3g} ms"
    )


def queue_full(what: str, *, wanted: int, limit: int, expected: float) -> QueueFullError:
    """`wanted` exceeds the `limit` on `what`; with room, an answer takes `expected` seconds."""
    retry = max(expected, _LEAST_RETRY_SECONDS)
    return QueueFullError(
        f"the queue is full: {wanted} {what} would wait, at most {limit} may; retry in "
        f"{retry * 1e3:.0f} ms",
        retry_seconds=retry,
    )
