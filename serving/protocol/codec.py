"""Formats of predict calls: request to model input, scores to answer."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from serving.protocol.message_format import MessageFormat
from serving.protocol.predict_message import parse_predict
from serving.protocol.predict_method import PredictMethod
from serving.protocol.readers.portable_reader import parse_request
from serving.protocol.request_header import RequestHeader, header_of, predict_header_of, read_header
from serving.protocol.request_tensors import RequestTensors
from serving.protocol.version_io import VersionIO
from sharded_infer.inputs.model_input import ModelInput

Request = TypeVar("Request", contravariant=True)
Answer = TypeVar("Answer", covariant=True)


class Scored(NamedTuple):
    """Results of a request.

    Attributes:
        outputs: positions of the outputs to send.
        scores: of these outputs, fp32 `[B]` or `[B, K]` each; valid until the batch ends.
        seconds: decoding, queue, lookups and tower.
        default_tables: tables whose default rows were used.
        unknown_ids: tables and their numbers of unknown ids, if the header requests them.
        label: the label whose weight chose the version; empty: none did.
    """

    header: RequestHeader
    outputs: Sequence[int]
    scores: Sequence[NDArray[np.float32]]
    seconds: Sequence[float]
    default_tables: Sequence[str] = ()
    unknown_ids: Sequence[tuple[str, int]] = ()
    label: str = ""


class Codec(Protocol[Request, Answer]):
    """A format of predict calls. Stateless and thread-safe."""

    def size_bytes(self, request: Request) -> int:
        """Bytes of a waiting request, without its model input."""
        ...

    def header(self, request: Request) -> RequestHeader:
        """Reads the header without the inputs; raises RequestError if it is malformed."""
        ...

    def decode(self, request: Request, io: VersionIO, shared: RequestTensors) -> ModelInput:
        """Reads and checks the batch; raises as `InputReader.read_message`."""
        ...

    def encode(self, scored: Scored, io: VersionIO, shared: RequestTensors) -> Answer:
        """Writes the answer, on the batch's thread.

        Raises RequestError or NotFoundError if the shared memory for an output cannot be written.
        """
        ...


class InferCodec:
    """ModelInferRequest and ModelInferResponse of the Open Inference Protocol."""

    def size_bytes(self, request: bytes) -> int:
        """Bytes of the message."""
        return len(request)

    def header(self, request: bytes) -> RequestHeader:
        """Implements `Codec.header`."""
        return read_header(request) or header_of(parse_request(request))

    def decode(self, request: bytes, io: VersionIO, shared: RequestTensors) -> ModelInput:
        """Implements `Codec.decode`."""
        return io.reader.read_message(request, shared)

    def encode(self, scored: Scored, io: VersionIO, shared: RequestTensors) -> bytes:
        """Implements `Codec.encode`."""
        header, outputs, scores, _, tables, unknown, label = scored
        answer = io.infer_writer.write(header.request_id, outputs, scores, tables, unknown, label)
        return io.infer_writer.placed(answer, header.places, shared) if header.places else answer


class PredictCodec:
    """PredictRequest and PredictResponse of protos/sharded_infer/v1/predictor.proto."""

    def size_bytes(self, request: bytes) -> int:
        """Bytes of the message."""
        return len(request)

    def header(self, request: bytes) -> RequestHeader:
        """Implements `Codec.header`."""
        form = MessageFormat.PREDICT
        return read_header(request, form) or predict_header_of(parse_predict(request))

    def decode(self, request: bytes, io: VersionIO, shared: RequestTensors) -> ModelInput:
        """Implements `Codec.decode`."""
        return io.reader.read_message(request, shared, MessageFormat.PREDICT)

    def encode(self, scored: Scored, io: VersionIO, shared: RequestTensors) -> bytes:
        """Implements `Codec.encode`."""
        header, outputs, scores, seconds, tables, unknown, label = scored
        request_id, write = header.request_id, io.predict_writer.write
        return write(request_id, outputs, scores, seconds, tables, unknown, label)


INFER_CODEC = InferCodec()
# Codecs of the methods whose requests and answers are protobuf messages.
MESSAGE_CODECS: Mapping[PredictMethod, Codec[bytes, bytes]] = {
    PredictMethod.MODEL_INFER: INFER_CODEC,
    PredictMethod.MODEL_STREAM_INFER: INFER_CODEC,
    PredictMethod.PREDICT: PredictCodec(),
}
