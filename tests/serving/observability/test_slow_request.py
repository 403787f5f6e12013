import logging
from dataclasses import replace

import pytest

from serving.host.thread_usage import ThreadUsage
from serving.metrics.families.request_families import BLAMED
from serving.observability.request_timeline import BatchFacts, RequestTimeline
from serving.observability.slow_request import judge, time_parts
from serving.observability.slow_request_log import SlowRequestLog
from serving.observability.trace_context import RequestTrace
from tests.serving.scheduler.timelines import ALONE, QUIET, request

BUSY = ThreadUsage(0.1, 0.1, 0, 0, 0)
# One of 8 requests; alone it would take a hundredth.
CROWD = BatchFacts(8, 1000, 1024, 0.001, 0.1, BUSY)


def in_batch(batch: BatchFacts, **usage: float) -> RequestTimeline:
    """A request whose batch took 100 ms, 30 of them lookups."""
    measured = replace(batch, usage=BUSY._replace(**usage))
    return request(lookup_seconds=0.03, tower_seconds=0.07, batch=measured)


CASES = [
    ("queue", request(queue_seconds=0.2, requests_ahead=14), ("200 ms", "14 requests waited")),
    ("decode", request(decode_seconds=0.2), ("reading 16 samples took 200 ms",)),
    ("encode", request(encode_seconds=0.2), ("writing the response took 200 ms",)),
    (
        "lookup",
        request(lookup_seconds=0.2, batch=replace(ALONE, usage=QUIET._replace(wall_seconds=0.2,
                cpu_seconds=0.2))),
        ("the lookup of its 16 samples took 200 ms",),
    ),
    ("tower", in_batch(ALONE), ("the tower of its 16 samples, run as 16 took 70 ms",)),
    (
        "batch_mates",
        in_batch(CROWD),
        ("99 ms for 984 samples of 7 others", "1 ms alone, 100 ms with them"),
    ),
    ("page_faults", in_batch(CROWD, minor_faults=90_000), ("90000 mapped",)),
    (
        "page_faults",
        in_batch(CROWD, cpu_seconds=0.02, major_faults=3),
        ("80 ms for 3 pages read from a disk",),
    ),
    (
        "preempted",
        in_batch(CROWD, cpu_seconds=0.02, switches=5),
        ("ran 20 ms of 100 ms: it was put aside 5 times",),
    ),
    ("other", request(whole_seconds=0.2), ("no phase that is measured",)),
]  # fmt: skip


@pytest.mark.parametrize(("phase", "slow", "words"), CASES)
def test_the_largest_part_of_the_time_is_the_reason_and_the_parts_add_up(
    phase: str, slow: RequestTimeline, words: tuple[str, ...]
) -> None:
    slow_cause = judge(slow)
    assert slow_cause.phase == phase
    assert [word for word in words if word not in slow_cause.reason] == []
    parts = time_parts(slow)
    assert tuple(sorted(parts)) == tuple(sorted(BLAMED))
    assert min(parts.values()) >= 0.0
    assert sum(parts.values()) == pytest.approx(slow.whole_seconds)


def test_writing_the_others_responses_is_their_doing() -> None:
    gap = in_batch(CROWD)
    later = replace(gap, whole_seconds=gap.whole_seconds + 0.5)
    assert judge(later).phase == "batch_mates" and judge(later).seconds > 0.5


def test_a_long_run_without_its_own_time_is_not_the_mates_doing() -> None:
    # It is as large as nearly all of the batch: the others added little.
    large = in_batch(replace(CROWD, alone_seconds=0.095))
    assert judge(large).phase == "tower"


def test_a_wait_is_never_longer_than_the_run() -> None:
    odd = in_batch(CROWD, wall_seconds=5.0, cpu_seconds=0.0, minor_faults=10**9)
    assert sum(time_parts(odd).values()) == pytest.approx(odd.whole_seconds)


SLOW = request(queue_seconds=0.2, requests_ahead=14)


def test_a_line_says_why_and_has_every_figure_as_a_field(caplog: pytest.LogCaptureFixture) -> None:
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
