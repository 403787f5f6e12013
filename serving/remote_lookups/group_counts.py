"""What the replicas of one shard host have been asked, and how it went."""

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
    """Since the process began.

    Attributes:
        failures: of calls, each of one replica.
        lost: lookups that failed their batch, by `LOST_CODES`.
        retries: calls of another replica after a failure.
        hedges: extra calls of late lookups.
        default_rows: rows of lost lookups for which default rows stood.
        sent_bytes: of the messages of lookups that were answered, to all replicas.
        received_bytes: of the answers that were taken.
        buckets: lookups that were answered, by latency.
        seconds: of all lookups.
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
        """What metrics are told, as `ServerMetrics.count` takes it."""
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
