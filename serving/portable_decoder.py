"""Serialized requests to checked model inputs through protobuf: any form, every error's words."""

import math
from collections.abc import Iterator
from typing import Any

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from kernels.wording import counted
from serving.codec import DTYPES, WireTensor, decode, wrong_shape
from serving.input_check import InputCheck
from serving.message_size import check_fields
from serving.predict_message import PredictInputs, parse_predict
from serving.shared_memory import Span
from serving.shared_tensors import SharedTensors, span_of
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
        self,
        spec: ModelSpec,
        *,
        max_batch: int | None,
        form: WireForm = WireForm.INFER,
        check: InputCheck | None = None,
    ) -> None:
        """Prepares what does not depend on the request.

        Args:
            spec: the model.
            max_batch: the largest batch to accept; None is no limit.
            form: of the messages.
            check: says how many inputs and ids a message may have; None: any number.
        """
        self._check = check
        max_ids = None if check is None else check.max_ids
        self._reader = RequestReader(spec, max_batch=max_batch, max_ids=max_ids)
        self._form = form
        self._predict_inputs = PredictInputs(spec)
        self._policy = InputPolicy(spec)

    def decode(self, message: bytes, shared: SharedTensors | None = None) -> ModelInput:
        """Reads a serialized message.

        Args:
            message: the request.
            shared: reads its inputs in shared memory; None: it may have none.

        Raises:
            RequestError: the message is none, an input is malformed or not what the model
                expects, or an id is outside a table whose policy is `error`.
            NotFoundError: an input lies in a shared memory region that is not registered.
            RequestTooLargeError: more samples, ids or inputs than allowed.
        """
        if self._form is WireForm.PREDICT:
            request = parse_predict(message)
            sides = (request.user, request.candidates)
            self._count(sum(len(side.sparse) + len(side.dense) for side in sides))
            found = self._reader.read(self._predict_inputs.arrays(request))
        else:
            request = parse_request(message)
            self._count(len(request.inputs))
            found = decode(wire_tensors(request, shared), self._reader)
        return self._policy.apply(found)

    def _count(self, inputs: int) -> None:
        if self._check is not None:
            self._check.check_count(inputs)


def parse_request(message: bytes) -> Any:
    """A ModelInferRequest.

    Raises:
        RequestError: the bytes are none.
        RequestTooLargeError: it has too many fields.
    """
    check_fields(message, WireForm.INFER)
    try:
        return service_pb2.ModelInferRequest.FromString(message)
    except DecodeError as error:
        raise RequestError(f"the message is unreadable: {error}") from error


def wire_tensors(request: Any, shared: SharedTensors | None = None) -> Iterator[WireTensor]:
    """The inputs of a ModelInferRequest.

    Args:
        request: the message.
        shared: reads those in shared memory; None: there may be none.

    Raises:
        RequestError: an input in shared memory that cannot be read, or another number of raw
            contents than of inputs that are not there.
        NotFoundError: an input lies in a region that is not registered.
        RequestTooLargeError: the inputs in shared memory are larger than allowed.
    """
    spans = [span_of(tensor.parameters, f"input {tensor.name!r}") for tensor in request.inputs]
    raw = request.raw_input_contents
    # Inputs in shared memory have no entry.
    inline = spans.count(None)
    if raw and len(raw) != inline:
        raise RequestError(
            "raw_input_contents: expected one for each of "
            f"{counted(inline, 'input')}, got {len(raw)}"
        )
    contents = iter(raw)
    for tensor, span in zip(request.inputs, spans, strict=True):
        if span is not None:
            data = _shared(tensor, span, shared or SharedTensors(None))
        elif raw:
            data = next(contents)
        else:
            # An unknown datatype is refused by the codec, whatever its contents.
            data = getattr(tensor.contents, _CONTENTS.get(tensor.datatype, "int64_contents"))
        yield WireTensor(tensor.name, tensor.datatype, tensor.shape, data)


def _shared(tensor: Any, span: Span, shared: SharedTensors) -> bytes:
    dtype = DTYPES.get(tensor.datatype)
    if dtype is None or wrong_shape(tensor.shape) is not None:
        return b""  # the codec says what is wrong
    expected = math.prod(tensor.shape) * dtype.itemsize
    return shared.read(span, expected, f"input {tensor.name!r}")
