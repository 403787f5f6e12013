"""Hedging: a slow call is duplicated, and the first answer counts.

Dean and Barroso, "The Tail at Scale", CACM 56(2), 2013: hedged requests.
"""

import queue
from collections.abc import Callable
from time import monotonic
from typing import Any


def first_answer(
    start: Callable[[float], Any], *, after_seconds: float, timeout_seconds: float
) -> Any:
    """Make a call, and a second one after `after_seconds` without an answer.

    `start` begins a call with the given deadline in seconds, and returns a gRPC future. Failed
    calls are not retried here. If one of two fails, the other's answer counts. Raises grpc.RpcError
    of the last failure.

    Args:
        timeout_seconds: the deadline of both, from now.
    """
    begun = monotonic()
    finished: queue.SimpleQueue[Any] = queue.SimpleQueue()
    calls = [start(timeout_seconds)]
    calls[0].add_done_callback(finished.put)
    try:
        try:
            done = finished.get(timeout=after_seconds)
        except queue.Empty:
            left = max(0.0, begun + timeout_seconds - monotonic())
            calls.append(start(left))
            calls[1].add_done_callback(finished.put)
            done = finished.get()
            if done.exception() is not None:
                done = finished.get()
        return done.result()
    finally:
        for call in calls:
            call.cancel()
