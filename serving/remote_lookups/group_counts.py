"""What the replicas of one shard host have been asked, and how it went."""

from dataclasses import dataclass, field

from serving.metrics.families.shard_families import SHARD_LOOKUP_SECONDS


@dataclass(slots=True)
class GroupCounts:
    """Since the process began.

    Attributes:
        failures: of calls, each of one replica.
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
    retries: int = 0
    hedges: int = 0
    ejections: int = 0
    default_rows: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    seconds: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * SHARD_LOOKUP_SECONDS.buckets)

    def listed(self) -> list[float]:
        """All but the first: events, bytes sent and received, lookups by latency, their seconds."""
        events = (self.retries, self.hedges, self.failures, self.ejections, self.default_rows)
        return [*events, self.sent_bytes, self.received_bytes, *self.buckets, self.seconds]
