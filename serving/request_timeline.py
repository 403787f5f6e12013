"""What is known of one request when it has been answered: for its spans and for the slow log."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from serving.predict_method import PredictMethod
from serving.thread_usage import ThreadUsage
from serving.trace_sampling import RequestTrace


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """The batch that a request ran in.

    Attributes:
        requests: its requests, this one included.
        samples: their samples.
        padded_samples: the size at which the tower ran.
        alone_seconds: what the request would cost by itself, by the cost table.
        together_seconds: what the batch costs, by the cost table.
        usage: of its thread during lookups and tower.
        rank_seconds: seconds of the lookups by rank, as far as they are known.
        linked: traces of the other requests in it that are traced.
    """

    requests: int
    samples: int
    padded_samples: int
    alone_seconds: float
    together_seconds: float
    usage: ThreadUsage
    rank_seconds: Mapping[int, float] = field(default_factory=dict)
    linked: tuple[RequestTrace, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestTimeline:
    """One request from its message to its answer.

    Attributes:
        model: that was asked; empty: none that is known.
        version: that was asked; 0: none.
        request_id: the client's own, cut to a length that logs can bear.
        executor: how its version's requests are put together.
        samples: its samples; 0: it was not read.
        started: when its message was there, on the monotonic clock.
        whole_seconds: from then to its encoded answer.
        decode_seconds: of reading it.
        queue_seconds: between that and the start of its batch, or the end of its wait.
        lookup_seconds: of its batch's lookups.
        tower_seconds: of its batch's tower.
        encode_seconds: of writing its response.
        requests_ahead: requests that waited when it came.
        code: the gRPC status code's name.
        error: what its client was told; empty: it was answered.
        method: by which it came.
        batch: that it ran in; None: it never did, or failed.
        trace: its trace; None: it is not traced.
    """

    model: str
    version: int
    request_id: str
    executor: str
    samples: int
    started: float
    whole_seconds: float
    decode_seconds: float = 0.0
    queue_seconds: float = 0.0
    lookup_seconds: float = 0.0
    tower_seconds: float = 0.0
    encode_seconds: float = 0.0
    requests_ahead: int = 0
    code: str = "OK"
    error: str = ""
    method: PredictMethod = PredictMethod.MODEL_INFER
    batch: BatchFacts | None = None
    trace: RequestTrace | None = None

    @property
    def run_seconds(self) -> float:
        """Seconds of its batch's lookups and tower."""
        return self.lookup_seconds + self.tower_seconds
