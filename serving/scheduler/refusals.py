"""Errors of refused calls."""

from typing import NamedTuple

from serving.abi import scheduler as abi
from serving.errors import DeadlineError, QueueFullError

_LEAST_RETRY_SECONDS = 0.001
_LIMITED = {
    abi.Refusal.MANY_REQUESTS: "requests",
    abi.Refusal.MANY_SAMPLES: "samples",
    abi.Refusal.MANY_BYTES: "bytes",
}
# Of calls that leave the queue without being run.
DROPPED = {
    abi.State.EXPIRED: "the request's deadline passed while it waited",
    abi.State.INFEASIBLE: "the request's deadline could not be met any more when its turn came",
    abi.State.CANCELLED: "the client gave the request up",
}


class Refusal(NamedTuple):
    """Why a call was not queued: a metric's label, and the error."""

    reason: str
    error: DeadlineError | QueueFullError


def refusal(refused: abi.Refused, *, left: float, expected: float) -> Refusal:
    """Reason of a call that was not queued.

    Args:
        left: seconds to its deadline.
        expected: seconds in which it would be answered.
    """
    if refused.why == abi.Refusal.DEADLINE_PASSED:
        words = "the request's deadline had passed when it could have been queued"
        return Refusal("expired", DeadlineError(words))
    if refused.why == abi.Refusal.DEADLINE_UNREACHABLE:
        words = (
            f"the deadline cannot be met: {left * 1e3:.3g} ms are left, an answer would take about "
            f"{expected * 1e3:.3g} ms"
        )
        return Refusal("deadline", DeadlineError(words))
    retry = max(expected, _LEAST_RETRY_SECONDS)
    words = (
        f"the queue is full: {refused.wanted} {_LIMITED[refused.why]} would wait, at most "
        f"{refused.limit} may; retry in {retry * 1e3:.0f} ms"
    )
    return Refusal("queue_full", QueueFullError(words, retry_seconds=retry))
