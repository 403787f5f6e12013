"""The result of a predict call: scores, or an error."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from sharded_infer.errors import ShardedInferError


class PredictError(ShardedInferError):
    """A call failed; `details` is the server's message, or the library's."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"{code.name}: {details}")
        self.code = code
        self.details = details


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds that the server took; lookups and tower are the whole batch's."""

    decode_seconds: float
    queue_seconds: float
    lookup_seconds: float
    tower_seconds: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """Scores of one request.

    Attributes:
        scores: fp32 `[B]` or `[B, K]` by output name.
        default_tables: tables with default rows, since no shard host could look theirs up.
        unknown_ids: the request's ids unknown to id maps, counted by table; empty unless requested.
        label: the label whose weight chose the version; empty: none did.
    """

    model: str
    version: int
    request_id: str
    scores: dict[str, NDArray[np.float32]]
    timing: Timing
    default_tables: tuple[str, ...] = ()
    unknown_ids: Mapping[str, int] = field(default_factory=dict)
    label: str = ""


def read_prediction(response: Any) -> Prediction:
    """A PredictResponse as a prediction."""
    scores = {}
    for output in response.outputs:
        values = np.array(output.values, np.float32)
        scores[output.name] = values.reshape(-1, output.width) if output.width else values
    timing = response.timing
    return Prediction(
        model=response.model,
        version=response.version,
        request_id=response.request_id,
        scores=scores,
        timing=Timing(
            timing.decode_seconds,
            timing.queue_seconds,
            timing.lookup_seconds,
            timing.tower_seconds,
        ),
        default_tables=tuple(response.default_tables),
        unknown_ids=dict(response.unknown_ids),
        label=response.label,
    )


def predict_error(error: grpc.RpcError) -> PredictError:
    """A gRPC error as ours."""
    code = error.code() if isinstance(error, grpc.Call | grpc.aio.AioRpcError) else None
    details = error.details() if code is not None else str(error)
    return PredictError(code or grpc.StatusCode.UNKNOWN, details or "")
