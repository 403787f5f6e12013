"""Requests of every form, read by protobuf and NumPy; decides all error messages."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2

from kernels.wording import counted
from serving.protocol.input_limits import InputLimits
from serving.protocol.message_format import MessageFormat
from serving.protocol.message_size import INFER_LIMITS, check_size
from serving.protocol.predict_message import PredictInputs, parse_predict
from serving.protocol.readers.unknown_ids import UnknownIds
from serving.protocol.readers.usual_inputs import UsualInputs
from serving.protocol.request_tensors import RequestTensors, parameters_of, span_of
from serving.protocol.wire_strings import BYTES
from serving.protocol.wire_tensors import WireTensor, infer_message, tensor_arrays
from sharded_infer.errors import RequestError
from sharded_infer.inputs.id_policy import InputPolicy
from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.inputs.placed_ids import RowMap
from sharded_infer.inputs.request_reader import RequestReader
from sharded_infer.specs.model_spec import ModelSpec

# Fields of typed contents by datatype.
_CONTENTS = {
    "INT64": "int64_contents",
    "INT32": "int_contents",
    "FP32": "fp32_contents",
    BYTES: "bytes_contents",
}


class PortableReader:
    """Reads the messages of a model."""

    def __init__(
        self,
        spec: ModelSpec,
        *,
        max_batch: int | None,
        limits: InputLimits | None = None,
        id_maps: Mapping[str, RowMap] | None = None,
        unknown_ids: UnknownIds | None = None,
    ) -> None:
        """Prepares the reader of a model; None for a limit means no limit.

        Args:
            id_maps: by table; ids of other tables that need one are left raw.
            unknown_ids: counts unknown ids; None: they are not reported.
        """
        self._limits = limits
        max_ids = None if limits is None else limits.max_ids
        self._reader = RequestReader(spec, max_batch=max_batch, max_ids=max_ids)
        self._predict_inputs = PredictInputs(spec)
        self._policy = InputPolicy(spec, id_maps)
        self._unknown_ids = unknown_ids
        self._usual = UsualInputs(spec)

    def read_message(
        self,
        message: bytes,
        shared: RequestTensors | None = None,
        form: MessageFormat = MessageFormat.INFER,
    ) -> ModelInput:
        """Reads a serialized message; arguments and errors as of `InputReader.read_message`."""
        found = self._policy.apply(self._reader.read(self._arrays(message, shared, form)))
        if found.ids_unknown and self._unknown_ids is not None:
            self._unknown_ids.add(found.ids_unknown)
        return found

    def rewritten(
        self, message: bytes, shared: RequestTensors, form: MessageFormat
    ) -> tuple[ModelInput, bytes]:
        """Reads a message, and rewrites its inputs as a ModelInferRequest that compiled code reads.

        Counts no unknown ids. Raises as `read_message`.
        """
        arrays = self._arrays(message, shared, form)
        found = self._reader.read(arrays)
        return self._policy.apply(found), infer_message(self._usual.tensors(found, arrays))

    def _arrays(
        self, message: bytes, shared: RequestTensors | None, form: MessageFormat
    ) -> Mapping[str, NDArray[np.generic]]:
        if form is MessageFormat.PREDICT:
            request = parse_predict(message)
            sides = (request.user, request.candidates)
            self._count(sum(len(side.sparse) + len(side.dense) for side in sides))
            return self._predict_inputs.arrays(request)
        request = parse_request(message)
        self._count(len(request.inputs))
        return tensor_arrays(wire_tensors(request, shared), self._reader)

    def _count(self, inputs: int) -> None:
        if self._limits is not None:
            self._limits.check_count(inputs)


def parse_request(message: bytes) -> Any:
    """Parses a ModelInferRequest.

    Raises:
        RequestError: the bytes are not such a message.
        RequestTooLargeError: it has too many fields or numbers.
    """
    check_size(message, INFER_LIMITS)
    try:
        return service_pb2.ModelInferRequest.FromString(message)
    except DecodeError as error:
        raise RequestError(f"the message is unreadable: {error}") from error


def wire_tensors(request: Any, shared: RequestTensors | None = None) -> Iterator[WireTensor]:
    """Inputs of a ModelInferRequest.

    Args:
        shared: reads inputs in shared memory; None: they are refused.

    Raises:
        RequestError: an input in shared memory cannot be read, the number of raw contents does not
            match the other inputs, or an input has data in two places, or in another datatype's.
        NotFoundError: an input lies in a region that is not registered.
        RequestTooLargeError: the inputs in shared memory are larger than allowed.
    """
    spans = [
        span_of(parameters_of(tensor.parameters), f"input {tensor.name!r}")
        for tensor in request.inputs
    ]
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
        if (raw or span is not None) and tensor.contents.ByteSize():
            raise RequestError(
                f"input {tensor.name!r}: expected data in one place, got contents and "
                f"{'raw_input_contents' if span is None else 'shared memory'}"
            )
        if span is not None:
            read = (shared or RequestTensors(None)).read_tensor
            data = read(span, tensor.datatype, tensor.shape, f"input {tensor.name!r}")
        elif raw:
            data = next(contents)
        else:
            # The codec refuses unknown datatypes, whatever their contents.
            field = _CONTENTS.get(tensor.datatype, "int64_contents")
            came = [other.name for other, _ in tensor.contents.ListFields()]
            if tensor.datatype in _CONTENTS and not {*came} <= {field}:
                raise RequestError(
                    f"input {tensor.name!r}: expected {field} alone, as its datatype is "
                    f"{tensor.datatype}, got {' and '.join(came)}"
                )
            data = getattr(tensor.contents, field)
        yield WireTensor(tensor.name, tensor.datatype, tensor.shape, data)
