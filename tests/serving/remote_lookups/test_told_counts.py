import logging
from random import Random

import pytest

from serving.metrics.server_metrics import ServerMetrics
from serving.remote_lookups.replica_group import MOST_FAILURES, Replica, ReplicaGroup
from serving.remote_lookups.told_counts import ToldCounts
from serving.status import StatusCode
from tests.serving.inference.planes import samples_of


def failing_group() -> tuple[ReplicaGroup, Replica]:
    one, two = Replica("h:1"), Replica("h:2")
    group = ReplicaGroup(1, (one, two), Random(3))
    for _ in range(MOST_FAILURES):
        one.in_flight += 1
        group.failed(one, 0.0)
    return group, two


def test_metrics_are_told_each_event_once_also_of_a_host_that_comes_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "sharded_infer")
    metrics = ServerMetrics()
    told = ToldCounts(metrics)
    group, two = failing_group()
    assert group.hedge(0.0, None, [group.replicas[0]]) is two
    for _ in range(3):
        group.looked_up(0.02, 7, 100)
    group.defaulted(30)
    group.unanswered(StatusCode.UNAVAILABLE)
    for _ in range(2):
        told.tell([group])
    group.defaulted(12)
    told.tell([group])
    group.looked_up(0.02, 7, 100)
    told.tell([group.with_replicas([two])])
    told.tell([failing_group()[0]])
    host = (("host", "1"),)
    page = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for sample in samples_of(metrics)
        if "_shard_" in sample.name
    }
    assert caplog.messages == [
        "shard host 1 cannot look its rows up: requests get default rows",
        "shard host 1 looks its rows up again",
    ]
    found = {name: value for (name, labels), value in page.items() if labels == host}
    assert found == {
        "sharded_infer_shard_retries_total": 1,
        # Nothing is shown also where another event has come.
        "sharded_infer_shard_hedges_total": 0,
        "sharded_infer_shard_default_rows_total": 42,
        "sharded_infer_shard_failures_total": 2 * MOST_FAILURES,
        "sharded_infer_shard_ejections_total": 2,
        "sharded_infer_shard_sent_bytes_total": 4 * 7,
        "sharded_infer_shard_received_bytes_total": 4 * 100,
        "sharded_infer_shard_lookup_seconds_count": 4,
        "sharded_infer_shard_lookup_seconds_sum": pytest.approx(0.08),
    }
    assert page["sharded_infer_shard_lookup_seconds_bucket", (("host", "1"), ("le", "0.025"))] == 4
    lost = {
        dict(labels)["code"]: value
        for (name, labels), value in page.items()
        if name == "sharded_infer_shard_lost_lookups_total"
    }
    assert lost == {"UNAVAILABLE": 1, "DEADLINE_EXCEEDED": 0}
    # Hosts that there are not are not on the page.
    assert {dict(labels)["host"] for _, labels in page} == {"1"}
