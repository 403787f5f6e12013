import os
import random
import threading
from collections.abc import Sequence

import pytest

pytest.importorskip("opentelemetry.sdk", reason="the extra `tracing` is not installed")

from opentelemetry.context import Context
from opentelemetry.sdk.trace.sampling import Decision, ParentBased, Sampler, TraceIdRatioBased
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from serving.observability.request_timeline import RequestTimeline
from serving.observability.trace_context import RequestTrace
from serving.observability.trace_settings import TraceSampling
from serving.observability.tracer import Send, Tracer
from tests.serving.scheduler.timelines import traced
from tests.support.waiting import until

REQUEST = traced(RequestTrace(1, 2))


def tracer_of(
    send: Send, dropped: list[int], *, capacity: int = 100, period_seconds: float = 0.01
) -> Tracer:
    return Tracer(
        TraceSampling(1.0),
        send,
        on_dropped=dropped.append,
        capacity=capacity,
        period_seconds=period_seconds,
    )


@pytest.mark.parametrize("follows_parent", [False, True])
@pytest.mark.parametrize("ratio", [0.0, 0.01, 0.3, 1.0])
def test_a_request_with_a_parent_is_sampled_as_by_the_sdk(
    ratio: float, follows_parent: bool
) -> None:
    tracer = Tracer(TraceSampling(ratio, follows_parent), lambda _: True)
    sdk: Sampler = TraceIdRatioBased(ratio)
    if follows_parent:
        sdk = ParentBased(sdk)
    draw = random.Random(7)
    bound = TraceIdRatioBased.get_bound_for_rate(ratio)
    edges = [low | 5 << 64 for low in (0, bound - 1, bound, 2**64 - 1) if 0 <= low < 2**64]
    for trace_id in edges + [draw.getrandbits(128) or 1 for _ in range(200)]:
        for sampled in (False, True):
            header = f"00-{trace_id:032x}-00000000000000ab-{int(sampled):02x}"
            found = tracer.begin((("traceparent", header),))
            span = NonRecordingSpan(SpanContext(trace_id, 0xAB, True, TraceFlags(int(sampled))))
            expected = sdk.should_sample(set_span_in_context(span, Context()), trace_id, "")
            assert (found is not None) == (expected.decision is not Decision.DROP)
            if found is not None:
                assert found.trace_id == trace_id and found.span_id not in (0, 0xAB)
                assert found.parent is not None and found.parent.span_id == 0xAB
    tracer.stop()


@pytest.mark.parametrize("follows_parent", [False, True])
def test_the_share_of_requests_without_a_parent_is_the_ratio(follows_parent: bool) -> None:
    tracer = Tracer(TraceSampling(0.25, follows_parent), lambda _: True)
    found = [trace for _ in range(4000) if (trace := tracer.begin(())) is not None]
    tracer.stop()
    # Six standard deviations around 1,000.
    assert 836 < len(found) < 1164
    assert len({trace.trace_id for trace in found}) == len(found)


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
    for request in requests:
        tracer.record(request)
    until(lambda: len(sent) == 50, "all are sent")
    tracer.stop()
    assert sent == requests and dropped == []
    assert set(nice) == {19}


def test_the_end_of_a_process_sends_what_waits() -> None:
    sent: list[RequestTimeline] = []

    def send(requests: Sequence[RequestTimeline]) -> bool:
        sent.extend(requests)
        return True

    tracer = tracer_of(send, [], period_seconds=3600.0)
    tracer.record(REQUEST)
    tracer.stop()
    assert sent == [REQUEST]


def test_the_end_of_a_process_waits_no_longer_than_its_time_for_a_collector_that_is_stuck() -> None:
    closed, dropped = threading.Event(), list[int]()

    def stuck(requests: Sequence[RequestTimeline]) -> bool:
        return not closed.wait(60.0)

    tracer = Tracer(TraceSampling(1.0), stuck, close=closed.set, on_dropped=dropped.append)
    for _ in range(100):
        tracer.record(REQUEST)
    tracer.stop()
    assert closed.is_set() and sum(dropped) == 100


def test_a_full_queue_drops_and_counts_and_keeps_nobody_waiting() -> None:
    stuck, dropped = threading.Event(), list[int]()

    def never(requests: Sequence[RequestTimeline]) -> bool:
        return stuck.wait(30.0)

    tracer = tracer_of(never, dropped, capacity=10)
    for _ in range(1000):
        tracer.record(REQUEST)
    # 10 wait, and up to 16 are being sent.
    assert 1000 - 26 <= sum(dropped) <= 990
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
    for at in range(2):
        tracer.record(REQUEST)
        until(lambda at=at: len(calls) > at, "it is sent")  # type: ignore[misc]
    tracer.stop()
    assert dropped == [1] and "internal error in sending spans" in caplog.text
