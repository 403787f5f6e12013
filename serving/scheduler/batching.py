"""How a version's calls are batched."""

from dataclasses import dataclass
from enum import Enum

LOWEST_PRIORITY = 10


class BatchingMode(Enum):
    """How a queue's calls are combined into batches."""

    INLINE = "inline"  # never: each call runs by itself
    BATCHED = "batched"  # always: calls wait up to the delay for more
    AUTO = "auto"  # those that arrived while all slots were busy, as far as batching is worth it


@dataclass(frozen=True, slots=True)
class BatchingPolicy:
    """How one queue batches.

    Attributes:
        max_batch: the most samples in a batch of several calls.
        max_delay: seconds that a batched queue waits for more calls.
        by_clock: a batch's cost is its elapsed time, because it waits for devices. Otherwise the
            cost is its thread's processor time.
        device_slots: batches that the devices hold at once; 0 if the queue runs on the host.
    """

    mode: BatchingMode = BatchingMode.AUTO
    max_batch: int = 1024
    max_delay: float = 0.001
    by_clock: bool = False
    device_slots: int = 0
