"""One version's queue in compiled code, and what its batches cost."""

import ctypes
import weakref
from collections.abc import Mapping

from serving.abi import scheduler as abi
from serving.scheduler.batching import BatchingPolicy


class Costs:
    """A queue's cost table. Thread-safe."""

    def __init__(self, queue: int) -> None:
        """Owns the compiled queue whose table it is: others may hold the table alone."""
        weakref.finalize(self, abi.queue_destroy, queue).atexit = False
        self._queue = queue

    def predicted(self, samples: int) -> float:
        """Estimated seconds of a batch of at least one sample."""
        seconds: float = abi.queue_predicted(self._queue, samples)
        return seconds

    def observe(
        self, samples: int, seconds: float, now: float, *, cpu_seconds: float | None = None
    ) -> None:
        """Learns from a batch that has run.

        Args:
            seconds: the batch's elapsed time.
            now: in seconds, on any one clock.
            cpu_seconds: processor time of the batch's thread; None means all of `seconds`.
        """
        burnt = seconds if cpu_seconds is None else cpu_seconds
        abi.queue_observe(self._queue, samples, seconds, now, burnt)

    def is_stale(self, samples: int, now: float) -> bool:
        """True if no batch near this size has run for a second."""
        return bool(abi.queue_is_stale(self._queue, samples, now))


class VersionQueue:
    """One version's queue. Only its batcher changes it; reading it is thread-safe."""

    def __init__(self, policy: BatchingPolicy, measured: Mapping[int, float]) -> None:
        """Starts empty, with the timings of warm-up.

        Args:
            measured: seconds of a batch by its samples, timed at warm-up; at least one size, all
                values positive.
        """
        sizes = sorted(measured)
        count = len(sizes)
        self.policy = policy
        self.address: int = abi.queue_create(
            abi.Mode[policy.mode.name],
            policy.max_batch,
            policy.max_delay,
            policy.device_slots,
            (ctypes.c_int64 * count)(*sizes),
            (ctypes.c_double * count)(*(measured[size] for size in sizes)),
            count,
        )
        self.costs = Costs(self.address)
        self._sums: abi.Sums = abi.queue_sums(self.address).contents

    def __len__(self) -> int:
        """The number of waiting requests."""
        waiting: int = self._sums.requests
        return waiting

    @property
    def samples(self) -> int:
        """Of all waiting requests together."""
        samples: int = self._sums.samples
        return samples

    def oldest_arrival(self) -> float:
        """When the request that has waited longest arrived; infinity if no request waits."""
        arrived: float = abi.queue_oldest_arrival(self.address)
        return arrived

    def saw(self, samples: int) -> None:
        """Records the size of a request, whether it is queued or not."""
        abi.queue_saw(self.address, samples)

    def due(self, now: float) -> float:
        """When the queue's batch begins if nothing else arrives; infinity if no request waits."""
        when: float = abi.queue_due(self.address, now)
        return when
