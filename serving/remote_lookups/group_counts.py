"""Counts of the calls of one shard host's replicas, and their outcomes."""

from dataclasses import dataclass, field

from serving.metrics.families.family import Family
from serving.metrics.families.shard_families import (
    LOST_CODES,
    SHARD_DEFAULT_ROWS,
    SHARD_EJECTIONS,
    SHARD_FAILURES,
    SHARD_HEDGES,
    SHARD_LOOKUP_SECONDS,
    SHARD_LOST_LOOKUPS,
    SHARD_RECEIVED_BYTES,
    SHARD_RETRIES,
    SHARD_SENT_BYTES,
)


@dataclass(slots=True)
class GroupCounts:
    """Counts since the process began.

    Attributes:
        failures: of calls, each of one replica.
        lost: lookups that failed their batch, by `LOST_CODES`.
        hedges: extra calls of late lookups.
        default_rows: substituted for rows of lost lookups.
        sent_bytes: messages of answered lookups, to all replicas.
        received_bytes: answers that were used.
        buckets: answered lookups, by latency.
    """

    lookups: int = 0
    failures: int = 0
    lost: list[int] = field(default_factory=lambda: [0] * len(LOST_CODES))
    retries: int = 0
    hedges: int = 0
    ejections: int = 0
    default_rows: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    seconds: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * SHARD_LOOKUP_SECONDS.buckets)

    def by_family(self) -> dict[Family, list[float]]:
        """Counts for `ServerMetrics.count`."""
        return {
            SHARD_RETRIES: [self.retries],
            SHARD_HEDGES: [self.hedges],
            SHARD_FAILURES: [self.failures],
            SHARD_LOST_LOOKUPS: [*self.lost],
            SHARD_EJECTIONS: [self.ejections],
            SHARD_DEFAULT_ROWS: [self.default_rows],
            SHARD_SENT_BYTES: [self.sent_bytes],
            SHARD_RECEIVED_BYTES: [self.received_bytes],
            SHARD_LOOKUP_SECONDS: [*self.buckets, self.seconds],
        }
