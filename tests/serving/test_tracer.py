"""The queue between requests and a collector: sent on another thread, bounded, never waited for."""

import os
import random
import threading
import time
from collections.abc import Callable, Sequence

import pytest

from serving.request_timeline import RequestTimeline
from serving.trace_sampling import RequestTrace, TraceSampling
from serving.tracer import Send, Tracer
from tests.serving.test_workers import until
from tests.serving.timelines import traced

REQUEST = traced(RequestTrace(1, 2))


def tracer_of(
    send: Send, dropped: list[int], *, capacity: int = 100, period_seconds: float = 0.01
) -> Tracer:
    return Tracer(
        TraceSampling(1.0),
        random.Random(3).getrandbits,
        send,
        on_dropped=dropped.append,
        capacity=capacity,
        period_seconds=period_seconds,
    )


def told(sent: list[RequestTimeline], taken: bool = True) -> Callable[..., bool]:
    def send(requests: Sequence[RequestTimeline]) -> bool:
        sent.extend(requests)
        return taken

    return send


def test_requests_are_sent_in_order_by_a_thread_of_the_lowest_priority() -> None:
    sent: list[RequestTimeline] = []
    nice: list[int] = []

    def send(requests: Sequence[RequestTimeline]) -> bool:
        nice.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        sent.extend(requests)
        return True

    dropped: list[int] = []
    tracer = tracer_of(send, dropped)
    requests = [traced(RequestTrace(1, at)) for at in range(1, 51)]
    tracer.start()
    for request in requests:
        tracer.record(request)
    until(lambda: len(sent) == 50, "all are sent")
    tracer.stop()
    assert sent == requests and dropped == []
    assert set(nice) == {19}


def test_the_end_of_a_process_sends_what_waits() -> None:
    sent: list[RequestTimeline] = []
    tracer = tracer_of(told(sent), [], period_seconds=3600.0)
    tracer.start()
    tracer.record(REQUEST)
    tracer.stop()
    assert sent == [REQUEST]


def test_a_full_queue_drops_and_counts_and_keeps_nobody_waiting() -> None:
    stuck, dropped = threading.Event(), list[int]()

    def never(requests: Sequence[RequestTimeline]) -> bool:
        return stuck.wait(30.0)

    tracer = tracer_of(never, dropped, capacity=10)
    tracer.start()
    began = time.monotonic()
    for _ in range(1000):
        tracer.record(REQUEST)
    took = time.monotonic() - began
    # 10 wait, and up to 16 are being sent.
    assert 1000 - 26 <= sum(dropped) <= 990 and took < 1.0
    stuck.set()
    tracer.stop()


def test_what_a_collector_does_not_take_is_counted_and_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answers = [False, False, True, True]
    sent: list[bool] = []

    def send(requests: Sequence[RequestTimeline]) -> bool:
        sent.append(answers[len(sent)])
        return sent[-1]

    caplog.set_level("INFO", "sharded_infer")
    dropped: list[int] = []
    tracer = tracer_of(send, dropped)
    tracer.start()
    for at in range(len(answers)):
        tracer.record(REQUEST)
        until(lambda at=at: len(sent) > at, "it is sent")  # type: ignore[misc]
    tracer.stop()
    assert dropped == [1, 1]
    messages = [record.getMessage() for record in caplog.records]
    assert [m.split(";")[0] for m in messages] == [
        "spans are not taken by the collector",
        "spans are taken by the collector again",
    ]


def test_an_error_in_sending_is_logged_and_the_next_are_sent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls: list[int] = []

    def send(requests: Sequence[RequestTimeline]) -> bool:
        calls.append(len(requests))
        if len(calls) == 1:
            raise ZeroDivisionError
        return True

    dropped: list[int] = []
    tracer = tracer_of(send, dropped)
    tracer.start()
    for at in range(2):
        tracer.record(REQUEST)
        until(lambda at=at: len(calls) > at, "it is sent")  # type: ignore[misc]
    tracer.stop()
    assert dropped == [1] and "internal error in sending spans" in caplog.text
