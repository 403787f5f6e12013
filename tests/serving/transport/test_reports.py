import logging

import pytest

from serving.abi.transport import Counters
from serving.metrics.families.server_families import GRPC_DROPS, HTTP_DROPS
from serving.metrics.server_metrics import ServerMetrics
from serving.status import StatusCode
from serving.transport.reports import GRPC_COUNTERS, HTTP_COUNTERS, TransportReports


def test_each_reason_is_a_label_of_the_metric_and_a_counter() -> None:
    assert tuple(GRPC_COUNTERS) == GRPC_DROPS and tuple(HTTP_COUNTERS) == HTTP_DROPS
    names = {*GRPC_COUNTERS.values(), *HTTP_COUNTERS.values()}
    assert all(hasattr(Counters(), name) for name in names)


def test_drops_and_refusals_are_counted_each_and_logged_once_a_second(
    caplog: pytest.LogCaptureFixture,
) -> None:
    metrics, now, refused = ServerMetrics(), [100.0], dict[StatusCode, int]()
    reports = TransportReports(
        lambda code, count: refused.update({code: refused.get(code, 0) + count}),
        metrics.grpc_dropped,
        now=lambda: now[0],
    )
    counters = Counters()
    caplog.set_level(logging.WARNING, "sharded_infer")
    reports.look(counters)
    assert caplog.messages == []
    counters.too_many_resets, counters.too_late = 5, 1
    counters.refused_predict[StatusCode.UNAUTHENTICATED.number] = 7
    reports.look(counters)
    assert refused == {StatusCode.UNAUTHENTICATED: 7} and caplog.messages == []
    now[0] += 1
    counters.too_many_resets = 6
    reports.look(counters)
    reports.look(counters)
    assert caplog.messages == ["gRPC clients dropped: late 1, resets 6"]
    count = metrics.registry.get_sample_value
    name = "sharded_infer_grpc_dropped_total"
    assert count(name, {"reason": "resets"}) == 6 and count(name, {"reason": "late"}) == 1
    assert count(name, {"reason": "pings"}) == 0
