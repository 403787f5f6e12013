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
        buckets: lookups that were answered, by latency.
        seconds: of all lookups.
    """

    lookups: int = 0
    failures: int = 0
    retries: int = 0
    hedges: int = 0
    ejections: int = 0
    default_rows: int = 0
    seconds: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * SHARD_LOOKUP_SECONDS.buckets)

    def listed(self) -> list[float]:
        """Retries, hedges, failures, ejections, default rows, lookups by latency, their seconds."""
        events = (self.retries, self.hedges, self.failures, self.ejections, self.default_rows)
        return [*events, *self.buckets, self.seconds]
