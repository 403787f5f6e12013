"""Serialized requests to checked model inputs through protobuf: any form, every error's words."""

from collections.abc import Iterator
from typing import Any

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from serving.codec import WireTensor, decode
from serving.predict_message import PredictInputs, parse_predict
from serving.wire_form import WireForm
from sharded_infer.batch import ModelInput
from sharded_infer.errors import RequestError
from sharded_infer.input_policy import InputPolicy
from sharded_infer.request import RequestReader
from sharded_infer.spec import ModelSpec

# Where typed contents are, by datatype.
_CONTENTS = {"INT64": "int64_contents", "INT32": "int_contents", "FP32": "fp32_contents"}


class PortableDecoder:
    """Reads the messages of one model."""

    def __init__(
        self, spec: ModelSpec, *, max_batch: int | None, form: WireForm = WireForm.INFER
    ) -> None:
        """Prepares what does not depend on the request.

        Args:
            spec: the model.
            max_batch: the largest batch to accept; None is no limit.
            form: of the messages.
        """
        self._reader = RequestReader(spec, max_batch=max_batch)
        self._form = form
        self._predict_inputs = PredictInputs(spec)
        self._policy = InputPolicy(spec)

    def decode(self, message: bytes) -> ModelInput:
        """Reads a serialized message.

        Raises:
            RequestError: the message is none, an input is malformed or not what the model
                expects, or an id is outside a table whose policy is `error`.
            RequestTooLargeError: more samples than allowed.
        """
        if self._form is WireForm.PREDICT:
            found = self._reader.read(self._predict_inputs.arrays(parse_predict(message)))
        else:
            found = decode(wire_tensors(parse_request(message)), self._reader)
        return self._policy.apply(found)


def parse_request(message: bytes) -> Any:
    """A ModelInferRequest.

    Raises:
        RequestError: the bytes are none.
    """
    try:
        return service_pb2.ModelInferRequest.FromString(message)
    except DecodeError as error:
        raise RequestError(f"the message is unreadable: {error}") from error


def wire_tensors(request: Any) -> Iterator[WireTensor]:
    """The inputs of a ModelInferRequest.

    Raises:
        RequestError: an input in shared memory, or another number of raw contents than of inputs.
    """
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise RequestError(
            f"raw_input_contents: expected one for each of {len(request.inputs)} inputs, "
            f"got {len(raw)}"
        )
    for index, tensor in enumerate(request.inputs):
        if "shared_memory_region" in tensor.parameters:
            raise RequestError(f"input {tensor.name!r}: shared memory is not offered here")
        if raw:
            data = raw[index]
        else:
            # An unknown datatype is refused by the codec, whatever its contents.
            data = getattr(tensor.contents, _CONTENTS.get(tensor.datatype, "int64_contents"))
        yield WireTensor(tensor.name, tensor.datatype, tensor.shape, data)
