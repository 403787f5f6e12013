"""Held calls of a batch and their answers, and calls that ended without a batch."""

import ctypes
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.inference.held_calls_library import AnsweredStruct, EndedStruct, KeptStruct
from serving.inference.shadows.shadow_request import ShadowRequest, copied_scores
from serving.protocol.codec import MESSAGE_CODECS
from serving.protocol.predict_method import PredictMethod
from serving.scheduler.queued_request import QueuedRequest
from serving.status import StatusCode
from serving.versions.loaded_version import LoadedVersion
from sharded_infer.engines.executor import RequestResult

# `Form` of native/call/held_call.h.
FORMS = {PredictMethod.MODEL_INFER: 1, PredictMethod.PREDICT: 2}
METHODS = {form: method for method, form in FORMS.items()}


class HeldBatch(QueuedRequest):
    """Held calls of a batch, as one request, with their int64 handles."""

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

    @property
    def batch_size(self) -> int:
        """Samples of its calls."""
        return self.samples


class HeldAnswers:
    """Unsent answers of a batch, at the compiled `address`.

    Attributes:
        counted: float64 `[calls, 8]`: samples, the seconds of decode, queue, lookup, tower, encode
            and the whole, and out-of-range ids.
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


def kept_call(
    batch: HeldBatch, kept: KeptStruct, ran: RequestResult, merging: float
) -> ShadowRequest:
    """Copies a kept message and its scores; the `merging` seconds count with the lookups."""
    place = slice(kept.first, kept.first + kept.samples)
    return ShadowRequest(
        batch.version,
        MESSAGE_CODECS[METHODS[kept.form]],
        ctypes.string_at(kept.message, kept.message_bytes),
        kept.message_bytes,
        kept.samples,
        copied_scores(batch.version, ran.scores, place),
        merging + ran.lookup_seconds + ran.tower_seconds,
    )
