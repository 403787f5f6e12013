"""What is asked of a version's queue, whatever schedules it."""

from typing import Protocol

from serving.scheduler.request_queue import BatchingPolicy


class Costs(Protocol):
    """Estimated run times of batches."""

    def predicted(self, samples: int) -> float:
        """Estimated seconds of a batch of at least one sample."""

    def observe(
        self, samples: int, seconds: float, now: float, *, cpu_seconds: float | None = None
    ) -> None:
        """Learns from a batch that has run; `cpu_seconds` is None if all were processor time."""

    def is_stale(self, samples: int, now: float) -> bool:
        """Whether no batch near this size has run for a second."""


class VersionQueue(Protocol):
    """One version's queue. Reading it is thread-safe."""

    @property
    def policy(self) -> BatchingPolicy:
        """How its requests are combined into batches."""

    @property
    def costs(self) -> Costs:
        """What its batches cost."""

    @property
    def samples(self) -> int:
        """Of all waiting requests together."""

    def __len__(self) -> int:
        """The number of waiting requests."""

    def oldest_arrival(self) -> float:
        """When the request that has waited longest arrived; infinity if no request waits."""

    def due(self, now: float) -> float:
        """When its batch begins if nothing else arrives; infinity if no request waits."""
