"""The data plane's codec of predict calls over HTTP."""

from typing import Protocol

from serving.http_api.infer_answer import InferScores, OutputForms, ScoredOutput
from serving.http_api.infer_request import read_document
from serving.http_api.usual_body import read_usual
from serving.protocol.codec import Scored
from serving.protocol.infer_writer import score_bytes
from serving.protocol.request_header import RequestHeader
from serving.protocol.request_tensors import RequestTensors
from serving.protocol.version_io import VersionIO
from sharded_infer.inputs.model_input import ModelInput


class InferRequest(Protocol):
    """A predict request over HTTP: a `UsualBody` or an `InferDocument`."""

    @property
    def forms(self) -> OutputForms:
        """Outputs requested in binary."""
        ...

    @property
    def size_bytes(self) -> int:
        """Bytes of the body."""
        ...

    def header(self) -> RequestHeader:
        """Implements `Codec.header`."""
        ...

    def decode(self, io: VersionIO, shared: RequestTensors) -> ModelInput:
        """Implements `Codec.decode`."""
        ...


def read_request(model: str, version: str, body: bytes, json_bytes: int | None) -> InferRequest:
    """Reads a request's body, by compiled code where possible; see `read_document`."""
    usual = read_usual(model, version, body, json_bytes)
    return read_document(model, version, body, json_bytes) if usual is None else usual


class JsonCodec:
    """JSON, with tensors in JSON or in binary. The event loop serializes the answer."""

    def size_bytes(self, request: InferRequest) -> int:
        """Bytes of the body."""
        return request.size_bytes

    def header(self, request: InferRequest) -> RequestHeader:
        """Implements `Codec.header`."""
        return request.header()

    def decode(self, request: InferRequest, io: VersionIO, shared: RequestTensors) -> ModelInput:
        """Implements `Codec.decode`."""
        return request.decode(io, shared)

    def encode(self, scored: Scored, io: VersionIO, shared: RequestTensors) -> InferScores:
        """Implements `Codec.encode`."""
        writer, header = io.infer_writer, scored.header
        outputs = []
        for position, scores in zip(scored.outputs, scored.scores, strict=True):
            name = writer.outputs[position]
            data, span = score_bytes(scores), header.places.get(name)
            if span is not None:
                shared.write(span, data, f"output {name!r}")
            outputs.append(ScoredOutput(name, scores.shape, data if span is None else None))
        return InferScores(
            writer.model,
            writer.version,
            header.request_id,
            outputs,
            scored.default_tables,
            scored.unknown_ids,
            scored.label,
        )
