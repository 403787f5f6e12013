import logging

import pytest

from serving.http_api.connections.connection_table import Drop
from serving.http_api.connections.drop_report import DropReport
from serving.metrics.families.server_families import HTTP_DROPS
from serving.metrics.server_metrics import ServerMetrics


def test_each_reason_is_a_label_of_the_metric() -> None:
    assert tuple(drop.value for drop in Drop) == HTTP_DROPS


def test_drops_are_counted_each_and_logged_once_a_second(caplog: pytest.LogCaptureFixture) -> None:
    metrics, now = ServerMetrics(), [100.0]
    report = DropReport(metrics, lambda: now[0])
    caplog.set_level(logging.WARNING, "sharded_infer")
    for _ in range(1000):
        report(Drop.ADDRESS)
    report(Drop.MALFORMED)
    assert caplog.messages == ["HTTP clients dropped: address 1"]
    now[0] += 1
    report(Drop.MALFORMED)
    assert caplog.messages[1:] == ["HTTP clients dropped: address 999, malformed 2"]
    count = metrics.registry.get_sample_value
    name = "sharded_infer_http_dropped_total"
    assert count(name, {"reason": "address"}) == 1000
    assert count(name, {"reason": "malformed"}) == 2
    assert count(name, {"reason": "unread"}) == 0
