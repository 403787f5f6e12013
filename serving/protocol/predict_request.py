"""Predict requests as their transports read them: a header, and a message with the inputs."""

from typing import NamedTuple, Protocol

from serving.protocol.message_format import MessageFormat
from serving.protocol.predict_message import parse_predict
from serving.protocol.readers.input_reader import InputReader
from serving.protocol.readers.portable_reader import parse_request
from serving.protocol.request_header import RequestHeader, header_of, predict_header_of, read_header
from serving.protocol.request_tensors import RequestTensors


class PredictRequest(Protocol):
    """A predict request whose inputs are not read."""

    @property
    def sent(self) -> bytes:
        """The message or body, inflated."""
        ...

    @property
    def json_bytes(self) -> int:
        """Length of a body's JSON that tensors in binary follow; else 0."""
        ...

    def header(self) -> RequestHeader:
        """Reads the header without the inputs; raises RequestError if it is malformed."""
        ...

    def message(self, reader: InputReader, shared: RequestTensors) -> bytes:
        """A message of the method's format with the inputs; raises as `InputReader.rewritten`."""
        ...

    def is_binary(self, output: str) -> bool:
        """True if an output is requested in binary beside JSON."""
        ...


class SentMessage(NamedTuple):
    """A request that is a protobuf message."""

    sent: bytes
    format: MessageFormat = MessageFormat.INFER

    @property
    def json_bytes(self) -> int:
        """Implements `PredictRequest.json_bytes`."""
        return 0

    def header(self) -> RequestHeader:
        """Implements `PredictRequest.header`."""
        header = read_header(self.sent, self.format)
        if header is not None:
            return header
        if self.format is MessageFormat.PREDICT:
            return predict_header_of(parse_predict(self.sent))
        return header_of(parse_request(self.sent))

    def message(self, reader: InputReader, shared: RequestTensors) -> bytes:
        """Implements `PredictRequest.message`."""
        return self.sent

    def is_binary(self, output: str) -> bool:
        """Implements `PredictRequest.is_binary`."""
        return False
