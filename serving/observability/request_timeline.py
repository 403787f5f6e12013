"""Record of one answered request, for its spans and the slow log."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from serving.host.thread_usage import ThreadUsage
from serving.observability.host_spans import HostSpan
from serving.observability.trace_context import RequestTrace
from serving.protocol.predict_method import PredictMethod


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """The batch of a request, with this request.

    Attributes:
        padded_samples: the size at which the tower ran.
        alone_seconds, together_seconds: the request alone and the batch, by the cost table.
        usage: of its thread during lookups and tower.
        rank_seconds: known lookup times by rank.
        linked: traces of its other traced requests.
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
        model, version: empty and 0: not known.
        request_id: the client's, truncated for logs.
        samples: 0: it was not read.
        started: arrival of its message, on the monotonic clock.
        whole_seconds: from then to its encoded answer.
        queue_seconds: from decoding to the start of its batch, or the end of its wait.
        lookup_seconds, tower_seconds: of its batch.
        requests_ahead: requests that waited when it arrived.
        code: name of the gRPC status code; `error` is its message to the client.
        batch: None: it did not run, or failed.
        hosts: its batch's lookups on shard hosts, also of a failed one.
        trace: None: it is not traced.
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
    hosts: tuple[HostSpan, ...] = ()
    trace: RequestTrace | None = None

    @property
    def run_seconds(self) -> float:
        """Seconds of its batch's lookups and tower."""
        return self.lookup_seconds + self.tower_seconds
