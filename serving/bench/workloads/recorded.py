"""Recorded requests as a load, at the times at which they came."""

from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from serving.bench.workloads.requests import request_message
from sharded_infer.samples.record import RecordedRequest, record_files, recorded_requests


@dataclass(frozen=True, slots=True)
class RecordedLoad:
    """Serialized requests in the order in which they came.

    Attributes:
        pairs: samples of a request in the mean.
        schedule: when they are due, float64 seconds from 0.
    """

    messages: list[bytes]
    pairs: float
    schedule: NDArray[np.float64]


def recorded_load(record: Path, model: str | None, *, speed: float, seconds: float) -> RecordedLoad:
    """The requests of a recording, at `speed` times its pace, that are due within some seconds.

    Raises InputError as `record_files` and `recorded_requests`.
    """
    requests = sorted(recorded_requests(record_files(record, model)), key=_came)
    due = [(_came(request) - _came(requests[0])) / speed for request in requests]
    schedule = np.array(list(takewhile(lambda time: time <= seconds, due)))
    kept = requests[: len(schedule)]
    return RecordedLoad(
        [request_message(request.model, request.inputs) for request in kept],
        sum(request.samples for request in kept) / len(kept),
        schedule,
    )


def _came(request: RecordedRequest) -> float:
    return request.seconds["time"] - request.server_seconds
