import logging
from dataclasses import replace

import pytest

from serving.observability.slow_request import judge
from serving.observability.slow_request_log import SlowRequestLog
from serving.observability.trace_context import RequestTrace
from tests.serving.scheduler.timelines import request

SLOW = request(queue_seconds=0.2, requests_ahead=14)


def test_a_line_says_why_and_has_every_figure_as_a_field(
    caplog: pytest.LogCaptureFixture,
) -> None:
    slow = replace(SLOW, trace=RequestTrace(0xABC, 1))
    assert SlowRequestLog().tell(slow, judge(slow), 0.0)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith(
        "slow request to ranker version 3, 203.5 ms: queue: waited"
    )
    fields = vars(record)
    assert (fields["event"], fields["phase"], fields["phase_ms"]) == ("slow_request", "queue", 200)
    assert (fields["model"], fields["version"], fields["request_id"]) == ("ranker", 3, "a-1")
    assert fields["trace_id"] == f"{0xABC:032x}"
    phases = ("decode_ms", "queue_ms", "lookup_ms", "tower_ms", "encode_ms")
    assert sum(fields[phase] for phase in phases) == pytest.approx(fields["total_ms"])
    assert "left_out" not in fields


def test_lines_are_limited_and_the_next_says_how_many_were_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = SlowRequestLog(lines_per_second=10.0)
    slow_cause = judge(SLOW)
    assert sum(log.tell(SLOW, slow_cause, 5.0) for _ in range(100)) == 10
    # A tenth of a second later there is one more, and no other.
    assert [log.tell(SLOW, slow_cause, 5.11) for _ in range(2)] == [True, False]
    assert vars(caplog.records[-1])["left_out"] == 90
    assert sum(log.tell(SLOW, slow_cause, 1000.0) for _ in range(100)) == 10
    assert vars(caplog.records[11])["left_out"] == 1
    assert len(caplog.records) == 21
