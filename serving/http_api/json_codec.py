"""The data plane's codec of predict calls over HTTP."""

from typing import NamedTuple, Protocol

from serving.http_api.infer_request import OutputForms, read_document
from serving.http_api.usual_body import read_usual
from serving.protocol.readers.input_reader import InputReader
from serving.protocol.request_header import RequestHeader
from serving.protocol.request_tensors import RequestTensors
from sharded_infer.inputs.model_input import ModelInput


class InferRequest(Protocol):
    """A predict request over HTTP: a `UsualBody`, an `InferDocument` or a `KeptBody`."""

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

    def decode(self, reader: InputReader, shared: RequestTensors) -> ModelInput:
        """Implements `Codec.decode`."""
        ...


def read_request(model: str, version: str, body: bytes, json_bytes: int | None) -> InferRequest:
    """Reads a request's body, by compiled code where possible; see `read_document`."""
    usual = read_usual(model, version, body, json_bytes)
    return read_document(model, version, body, json_bytes) if usual is None else usual


class KeptBody(NamedTuple):
    """A body that compiled code has read, to be read for another version."""

    body: bytes
    json_bytes: int | None

    @property
    def forms(self) -> OutputForms:
        """Implements `InferRequest.forms`."""
        return self._read().forms

    @property
    def size_bytes(self) -> int:
        """Bytes of the body."""
        return len(self.body)

    def header(self) -> RequestHeader:
        """Implements `Codec.header`."""
        return self._read().header()

    def decode(self, reader: InputReader, shared: RequestTensors) -> ModelInput:
        """Implements `Codec.decode`."""
        return self._read().decode(reader, shared)

    def _read(self) -> InferRequest:
        return read_request("", "", self.body, self.json_bytes)


class JsonCodec:
    """JSON, with tensors in JSON or in binary."""

    def size_bytes(self, request: InferRequest) -> int:
        """Bytes of the body."""
        return request.size_bytes

    def header(self, request: InferRequest) -> RequestHeader:
        """Implements `Codec.header`."""
        return request.header()

    def decode(
        self, request: InferRequest, reader: InputReader, shared: RequestTensors
    ) -> ModelInput:
        """Implements `Codec.decode`."""
        return request.decode(reader, shared)

    def is_binary(self, request: InferRequest, output: str) -> bool:
        """Implements `Codec.is_binary`."""
        return request.forms.is_binary(output)
