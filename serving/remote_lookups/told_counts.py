"""Adds counts of replica groups to a server's metrics, and logs lost hosts with default rows."""

import logging
from collections.abc import Iterable
from operator import sub

from serving.metrics.families.family import Family
from serving.metrics.families.shard_families import (
    HOST_PLACES,
    LOST_CODES,
    SHARD_DEFAULT_ROWS,
    SHARD_LOOKUP_SECONDS,
    SHARD_LOST_LOOKUPS,
)
from serving.metrics.server_metrics import ServerMetrics
from serving.remote_lookups.group_counts import GroupCounts
from serving.remote_lookups.replica_group import ReplicaGroup

_log = logging.getLogger("sharded_infer")


class ToldCounts:
    """Counts reported to the metrics, by one thread: lookups do not wait for metrics."""

    def __init__(self, metrics: ServerMetrics) -> None:
        self._metrics = metrics
        # By host; a host that left the hosts file and came back counts from zero.
        self._told: dict[int, tuple[GroupCounts, dict[Family, list[float]]]] = {}
        self._defaulting: set[int] = set()

    def tell(self, groups: Iterable[ReplicaGroup]) -> None:
        """Add counts since the last call."""
        for group in groups:
            counts, now = group.counts, group.counted()
            known = self._told.get(group.host)
            if known is None or known[0] is not counts:
                known = counts, GroupCounts().by_family()
            _, before = known
            self._told[group.host] = counts, now
            fresh = {family: list(map(sub, now[family], before[family])) for family in now}
            host = HOST_PLACES[min(group.host, len(HOST_PLACES) - 1)]
            for code, lost in zip(LOST_CODES, fresh.pop(SHARD_LOST_LOOKUPS), strict=True):
                self._metrics.count(SHARD_LOST_LOOKUPS, f"{host}, {code}", [lost])
            for family, by in fresh.items():
                self._metrics.count(family, host, by)
            lacks_rows = any(fresh[SHARD_DEFAULT_ROWS])
            has_answered = any(fresh[SHARD_LOOKUP_SECONDS])
            if lacks_rows and group.host not in self._defaulting:
                _log.warning(
                    "shard host %d cannot look its rows up: requests get default rows", group.host
                )
                self._defaulting.add(group.host)
            elif group.host in self._defaulting and has_answered and not lacks_rows:
                _log.info("shard host %d looks its rows up again", group.host)
                self._defaulting.discard(group.host)
