"""One predict call: its input for the model, and the data for its answer."""

from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

from serving.inference.shadows.shadow_request import ShadowRequest, copied_scores
from serving.observability.host_spans import HostSpan
from serving.observability.trace_context import RequestTrace
from serving.protocol.codec import Codec, Scored
from serving.protocol.predict_method import PredictMethod
from serving.protocol.request_header import RequestHeader
from serving.protocol.request_tensors import RequestTensors
from serving.scheduler.queued_request import QueuedRequest
from serving.versions.loaded_version import LoadedVersion
from sharded_infer.engines.executor import RequestResult
from sharded_infer.inputs.model_input import ModelInput

# Clients choose request ids; logs and spans keep at most this many characters.
_LONGEST_ID = 128


class PredictCall(QueuedRequest):
    """A predict call: a request in its version's queue, with the data for its answer.

    Attributes:
        outputs: positions of the requested outputs.
        memory: receives the outputs that go to shared memory.
        decoded: when its message had been decoded, on the monotonic clock.
        requests_ahead: requests that waited when it arrived.
        trace: None if it is not traced.
        label: the label whose weight chose the version; empty: none did.
        hosts: its batch's lookups on shard hosts, if that is traced.
        message: as received, if another version is to score it too.
        answered: the message with its scores, when it has them.
        count: requests that it stands for.
    """

    count = 1
    __slots__ = (
        "answered", "codec", "decoded", "header", "hosts", "label", "memory", "message", "method",
        "model_input", "outputs", "requests_ahead", "trace", "version",
    )  # fmt: skip

    def __init__(
        self,
        version: LoadedVersion,
        header: RequestHeader,
        outputs: Sequence[int],
        model_input: ModelInput,
        *,
        codec: Codec[Any, Any],
        memory: RequestTensors,
        method: PredictMethod,
        arrived: float,
        deadline: float,
        size_bytes: int,
        requests_ahead: int = 0,
        trace: RequestTrace | None = None,
        label: str = "",
        message: Any = None,
        on_done: "Callable[[PredictCall], None] | None" = None,
    ) -> None:
        """Describes a call that has just been decoded; all times are monotonic."""
        super().__init__(
            version.queue,
            samples=version.model.work.units(model_input),
            arrived=arrived,
            deadline=deadline,
            size_bytes=size_bytes,
            priority=header.priority,
            on_done=on_done,
        )
        self.version = version
        self.codec = codec
        self.header = header
        self.outputs = outputs
        self.model_input = model_input
        self.memory = memory
        self.method = method
        self.requests_ahead = requests_ahead
        self.trace = trace
        self.label = label
        self.hosts: Sequence[HostSpan] = ()
        self.message = message
        self.answered: ShadowRequest | None = None
        self.decoded = monotonic()

    @property
    def batch_size(self) -> int:
        """Its samples; `samples` also counts the positions of sequences."""
        return self.model_input.batch_size

    def encode(self, execution: RequestResult, queue_seconds: float) -> Any:
        """Encodes the answer; ShardedInferError if an output's shared memory cannot be written."""
        scores = [execution.scores[position] for position in self.outputs]
        seconds = (
            self.decoded - self.arrived,
            queue_seconds,
            execution.lookup_seconds,
            execution.tower_seconds,
        )
        unknown: tuple[tuple[str, int], ...] = ()
        if self.header.reports_unknown_ids:
            # Each table's ids are mapped here, or by shard hosts.
            unknown = tuple(sorted((*self.model_input.ids_unknown, *execution.ids_unknown)))
        tables = execution.default_tables
        scored = Scored(self.header, self.outputs, scores, seconds, tables, unknown, self.label)
        return self.codec.encode(scored, self.version.io, self.memory)

    def keep(self, execution: RequestResult) -> None:
        """Stores its scores, if another version is to score it too."""
        if self.message is None:
            return
        self.answered = ShadowRequest(
            self.version,
            self.codec,
            self.message,
            self.size_bytes,
            self.batch_size,
            copied_scores(self.version, execution.scores),
            execution.lookup_seconds + execution.tower_seconds,
            has_defaults=bool(execution.default_tables),
        )

    def log_fields(self) -> dict[str, object]:
        """Fields that the log adds to an error of this call."""
        return log_fields(self.header, self.version, self.trace)


def log_fields(
    header: RequestHeader | None, version: LoadedVersion | None, trace: RequestTrace | None
) -> dict[str, object]:
    """Fields that the log adds to an error; unknown arguments are None."""
    fields: dict[str, object] = {}
    if version is not None:
        fields |= {"model": version.model.name, "version": version.model.version}
    if header is not None:
        fields["request_id"] = short_id(header.request_id)
    if trace is not None:
        fields["trace_id"] = trace.trace_hex
    return fields


def short_id(request_id: str) -> str:
    """Part of a client's request id that logs and spans contain."""
    return request_id if len(request_id) <= _LONGEST_ID else request_id[:_LONGEST_ID] + "…"
