"""One predict call on its way: what a job runs, and what is needed to answer it."""

from collections.abc import Sequence
from time import monotonic

from serving.predict_method import PredictMethod
from serving.request_header import RequestHeader
from serving.shared_tensors import SharedTensors
from serving.snapshot import Snapshot
from serving.trace_sampling import RequestTrace
from serving.wire_form import WireForm
from sharded_infer.batch import ModelInput
from sharded_infer.executor import Execution

# A request id is the client's own: logs and spans hold no more of it.
_LONGEST_ID = 128


class Call:
    """One predict call: what a job runs, and what is needed to answer it."""

    __slots__ = (
        "decoded", "header", "method", "model_input", "requested", "requests_ahead", "shared",
        "snapshot", "started", "trace",
    )  # fmt: skip

    def __init__(
        self,
        snapshot: Snapshot,
        header: RequestHeader,
        requested: Sequence[int],
        model_input: ModelInput,
        *,
        method: PredictMethod,
        shared: SharedTensors,
        started: float,
        requests_ahead: int = 0,
        trace: RequestTrace | None = None,
    ) -> None:
        """Keeps the request; the clock is monotonic.

        Args:
            snapshot: the version that answers.
            header: what the message says beside its inputs.
            requested: positions of the outputs that are asked for.
            model_input: what is asked.
            method: by which it came.
            shared: takes the outputs that are to be put in shared memory.
            started: when the message was there.
            requests_ahead: requests that waited when it came.
            trace: its trace; None: it is not traced.
        """
        self.method = method
        self.shared = shared
        self.snapshot = snapshot
        self.header = header
        self.requested = requested
        self.model_input = model_input
        self.started = started
        self.requests_ahead = requests_ahead
        self.trace = trace
        self.decoded = monotonic()

    def encode(self, execution: Execution, queue_seconds: float) -> bytes:
        """The serialized response.

        Args:
            execution: what the request got.
            queue_seconds: how long it waited.

        Raises:
            ShardedInferError: the shared memory for an output cannot be written.
        """
        scores = [execution.scores[position] for position in self.requested]
        request_id, snapshot, places = self.header.request_id, self.snapshot, self.header.places
        if places:
            encode = snapshot.encoder.encode_placed
            return encode(request_id, self.requested, scores, places, self.shared)
        if self.method.form is WireForm.INFER:
            return snapshot.encoder.encode(request_id, self.requested, scores)
        seconds = (
            self.decoded - self.started,
            queue_seconds,
            execution.lookup_seconds,
            execution.tower_seconds,
        )
        return snapshot.predict_encoder.encode(request_id, self.requested, scores, seconds)

    def log_fields(self) -> dict[str, object]:
        """What the log says of it beside an error."""
        return log_fields(self.header, self.snapshot, self.trace)


def log_fields(
    header: RequestHeader | None, snapshot: Snapshot | None, trace: RequestTrace | None
) -> dict[str, object]:
    """What the log says of a request beside an error, as far as it has been read.

    Args:
        header: what its message says beside its inputs.
        snapshot: the version that is asked.
        trace: its trace.
    """
    fields: dict[str, object] = {}
    if snapshot is not None:
        fields |= {"model": snapshot.model.name, "version": snapshot.model.version}
    if header is not None:
        fields["request_id"] = short_id(header.request_id)
    if trace is not None:
        fields["trace_id"] = trace.trace_hex
    return fields


def short_id(request_id: str) -> str:
    """As much of a client's request id as logs and spans hold."""
    return request_id if len(request_id) <= _LONGEST_ID else request_id[:_LONGEST_ID] + "…"
