"""The held calls of one batch and their answers, and calls that ended without a batch."""

from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.inference.held_calls_library import AnsweredStruct, EndedStruct
from serving.scheduler.request_queue import QueuedRequest
from serving.status import StatusCode
from serving.versions.loaded_version import LoadedVersion


class HeldBatch(QueuedRequest):
    """The held calls of a batch, as one request.

    Attributes:
        count: the number of calls.
        handles: int64, of its calls.
    """

    __slots__ = ("count", "handles", "version")

    def __init__(
        self,
        version: LoadedVersion,
        handles: "array[int]",
        samples: int,
        on_done: Callable[[Any], None],
    ) -> None:
        super().__init__(version.queue, samples=samples, arrived=0.0, on_done=on_done)
        self.version = version
        self.handles = handles
        self.count = len(handles)


class HeldAnswers:
    """The answers of a batch, which are not sent yet.

    Attributes:
        address: of the compiled answers.
        counted: float64 `[calls, 8]`: samples, the seconds of decode, queue, lookup, tower, encode
            and the whole, and ids outside their tables.
        slowest_seconds: of the whole.
    """

    __slots__ = ("address", "counted", "decode_seconds", "encode_seconds", "slowest_seconds")

    def __init__(self, address: int, counted: NDArray[np.float64], sums: AnsweredStruct) -> None:
        self.address, self.counted = address, counted
        self.decode_seconds: float = sums.decode_seconds
        self.encode_seconds: float = sums.encode_seconds
        self.slowest_seconds: float = sums.slowest_seconds


def count_ended(version: LoadedVersion, ended: EndedStruct) -> int:
    """Counts calls of a version that ended without being run; returns how many had waited."""
    metrics = version.metrics
    if ended.late:
        metrics.refused("deadline", ended.late)
        metrics.failed(StatusCode.DEADLINE_EXCEEDED.name, ended.late_seconds, ended.late)
    cancelled: int = ended.cancelled
    if cancelled:
        metrics.refused("cancelled", cancelled)
        metrics.failed(StatusCode.CANCELLED.name, ended.cancelled_seconds, cancelled)
    return cancelled
