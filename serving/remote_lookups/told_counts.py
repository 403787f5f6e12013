"""Adds what replica groups have counted to a server's metrics; logs which hosts are lost.

Only hosts for which default rows stand: the loss of others fails requests, which say it.
"""

import logging
from collections.abc import Iterable

from serving.metrics.families.shard_families import (
    HOST_PLACES,
    SHARD_DEFAULT_ROWS,
    SHARD_EJECTIONS,
    SHARD_FAILURES,
    SHARD_HEDGES,
    SHARD_LOOKUP_SECONDS,
    SHARD_RECEIVED_BYTES,
    SHARD_RETRIES,
    SHARD_SENT_BYTES,
)
from serving.metrics.server_metrics import ServerMetrics
from serving.remote_lookups.group_counts import GroupCounts
from serving.remote_lookups.replica_group import ReplicaGroup

_log = logging.getLogger("sharded_infer")


class ToldCounts:
    """What the metrics have been told. One thread uses it: lookups do not wait for metrics."""

    def __init__(self, metrics: ServerMetrics) -> None:
        self._metrics = metrics
        # By host; a host that left the hosts file and came back counts from zero.
        self._told: dict[int, tuple[GroupCounts, list[float]]] = {}
        self._defaulting: set[int] = set()

    def tell(self, groups: Iterable[ReplicaGroup]) -> None:
        """Adds what came since the last call."""
        for group in groups:
            counts, now = group.counts, group.counted()
            known = self._told.get(group.host)
            before = known[1] if known is not None and known[0] is counts else [0.0] * len(now)
            self._told[group.host] = counts, now
            fresh = [after - one for after, one in zip(now, before, strict=True)]
            host = HOST_PLACES[min(group.host, len(HOST_PLACES) - 1)]
            retries, hedges, failures, ejections, default_rows, sent, received, *latencies = fresh
            self._metrics.count(SHARD_RETRIES, host, [retries])
            self._metrics.count(SHARD_HEDGES, host, [hedges])
            self._metrics.count(SHARD_FAILURES, host, [failures])
            self._metrics.count(SHARD_EJECTIONS, host, [ejections])
            self._metrics.count(SHARD_DEFAULT_ROWS, host, [default_rows])
            self._metrics.count(SHARD_SENT_BYTES, host, [sent])
            self._metrics.count(SHARD_RECEIVED_BYTES, host, [received])
            self._metrics.count(SHARD_LOOKUP_SECONDS, host, latencies)
            if default_rows and group.host not in self._defaulting:
                _log.warning(
                    "shard host %d cannot look its rows up: requests get default rows", group.host
                )
                self._defaulting.add(group.host)
            elif group.host in self._defaulting and any(latencies) and not default_rows:
                _log.info("shard host %d looks its rows up again", group.host)
                self._defaulting.discard(group.host)
