"""Shard hosts and their replicas as plain values, for the live page."""

from collections.abc import Mapping
from typing import Any

from serving.remote_lookups.replica_group import Replica, ReplicaGroup


def described_hosts(groups: Mapping[int, ReplicaGroup]) -> list[dict[str, Any]]:
    """State of the replicas of each host, by its number, as known to this process."""
    return [
        {"host": host, "replicas": [_described(one) for one in group.replicas]}
        for host, group in sorted(groups.items())
    ]


def _described(replica: Replica) -> dict[str, Any]:
    held = sorted(one.key for one in replica.held or ())
    return {
        "address": replica.address,
        "state": "ejected" if replica.is_ejected else "healthy",
        "in_flight": replica.in_flight,
        "latency_seconds": replica.latency,
        "versions": [f"{key.model} {key.version}" for key in held],
    }
