"""Formats of predict calls: from a request to a model's input."""

from collections.abc import Mapping
from typing import Protocol, TypeVar

from serving.protocol.message_format import MessageFormat
from serving.protocol.predict_message import parse_predict
from serving.protocol.predict_method import PredictMethod
from serving.protocol.readers.input_reader import InputReader
from serving.protocol.readers.portable_reader import parse_request
from serving.protocol.request_header import RequestHeader, header_of, predict_header_of, read_header
from serving.protocol.request_tensors import RequestTensors
from sharded_infer.inputs.model_input import ModelInput

Request = TypeVar("Request", contravariant=True)


class Codec(Protocol[Request]):
    """A format of predict calls. Stateless and thread-safe."""

    def size_bytes(self, request: Request) -> int:
        """Bytes of a waiting request, without its model input."""
        ...

    def header(self, request: Request) -> RequestHeader:
        """Reads the header without the inputs; raises RequestError if it is malformed."""
        ...

    def decode(self, request: Request, reader: InputReader, shared: RequestTensors) -> ModelInput:
        """Reads and checks the batch; raises as `InputReader.read_message`."""
        ...

    def is_binary(self, request: Request, output: str) -> bool:
        """True if an output is requested in binary beside JSON."""
        ...


class InferCodec:
    """ModelInferRequest of the Open Inference Protocol."""

    def size_bytes(self, request: bytes) -> int:
        """Bytes of the message."""
        return len(request)

    def header(self, request: bytes) -> RequestHeader:
        """Implements `Codec.header`."""
        return read_header(request) or header_of(parse_request(request))

    def decode(self, request: bytes, reader: InputReader, shared: RequestTensors) -> ModelInput:
        """Implements `Codec.decode`."""
        return reader.read_message(request, shared)

    def is_binary(self, request: bytes, output: str) -> bool:
        """Implements `Codec.is_binary`."""
        return False


class PredictCodec:
    """PredictRequest of protos/sharded_infer/v1/predictor.proto."""

    def size_bytes(self, request: bytes) -> int:
        """Bytes of the message."""
        return len(request)

    def header(self, request: bytes) -> RequestHeader:
        """Implements `Codec.header`."""
        form = MessageFormat.PREDICT
        return read_header(request, form) or predict_header_of(parse_predict(request))

    def decode(self, request: bytes, reader: InputReader, shared: RequestTensors) -> ModelInput:
        """Implements `Codec.decode`."""
        return reader.read_message(request, shared, MessageFormat.PREDICT)

    def is_binary(self, request: bytes, output: str) -> bool:
        """Implements `Codec.is_binary`."""
        return False


INFER_CODEC = InferCodec()
# Codecs of the methods whose requests are protobuf messages.
MESSAGE_CODECS: Mapping[PredictMethod, Codec[bytes]] = {
    PredictMethod.MODEL_INFER: INFER_CODEC,
    PredictMethod.MODEL_STREAM_INFER: INFER_CODEC,
    PredictMethod.PREDICT: PredictCodec(),
}
