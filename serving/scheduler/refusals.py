"""Errors of refused calls."""

from typing import NamedTuple

from serving.errors import DeadlineError, QueueFullError
from serving.scheduler.batching import CallState

_LEAST_RETRY_SECONDS = 0.001
# `Refusal` of native/scheduler/decision.h; above these, what is limited.
_PASSED, _UNREACHABLE = 1, 2
_LIMITED = {3: "requests", 4: "samples", 5: "bytes"}
# Of calls that leave the queue without being run.
DROPPED = {
    CallState.EXPIRED: "the request's deadline passed while it waited",
    CallState.INFEASIBLE: "the request's deadline could not be met any more when its turn came",
    CallState.CANCELLED: "the client gave the request up",
}


class Refusal(NamedTuple):
    """Why a call was not queued: a metric's label, and the error."""

    reason: str
    error: DeadlineError | QueueFullError


def refusal(why: int, *, left: float, expected: float, wanted: int, limit: int) -> Refusal:
    """Reason of a call that was not queued.

    Args:
        why: a `Refusal`.
        left: seconds to its deadline.
        expected: seconds in which it would be answered.
        wanted: what would wait, of at most `limit`.
    """
    if why == _PASSED:
        words = "the request's deadline had passed when it could have been queued"
        return Refusal("expired", DeadlineError(words))
    if why == _UNREACHABLE:
        words = (
            f"the deadline cannot be met: {left * 1e3:.3g} ms are left, an answer would take about "
            f"{expected * 1e3:.3g} ms"
        )
        return Refusal("deadline", DeadlineError(words))
    retry = max(expected, _LEAST_RETRY_SECONDS)
    words = (
        f"the queue is full: {wanted} {_LIMITED[why]} would wait, at most {limit} may; retry in "
        f"{retry * 1e3:.0f} ms"
    )
    return Refusal("queue_full", QueueFullError(words, retry_seconds=retry))
