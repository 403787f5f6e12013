"""Predict requests in JSON, with tensors in JSON or in binary.

body   JSON, followed by the bytes of the binary inputs, in the order of the inputs
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from kernels.wording import counted
from serving.http_api.json_reader import (
    kind_of,
    object_of,
    objects_of,
    read_object,
    text_of,
    whole_number,
)
from serving.protocol.readers.input_reader import InputReader
from serving.protocol.request_header import RequestHeader, make_header
from serving.protocol.request_tensors import REGION, RequestTensors, span_of
from serving.protocol.wire_strings import BYTES, packed_strings
from serving.protocol.wire_tensors import DTYPES, WireTensor, infer_message
from sharded_infer.errors import RequestError

_BINARY_SIZE = "binary_data_size"
_MOST_DIMENSIONS = 64
_LEAST_INT, _MOST_UINT = -(2**63), 2**64 - 1
_MOST_SIZE = 2**63 - 1


class InferDocument(NamedTuple):
    """A predict request over HTTP, whose tensors have not been decoded.

    Attributes:
        version: a number or a label; empty for the parameter `label` or the default version.
        parameters: plain values by name.
        outputs: names of the requested outputs, with their parameters.
        binary: outputs that say nothing are requested in binary.
        binary_outputs: of outputs that say it.
        inputs: data from the body's binary part or from JSON; empty for data in shared memory.
        input_parameters: by the input's position, of inputs that have any.
        sent: the body, with `json_bytes` of JSON; 0: it is JSON alone.
    """

    model: str
    version: str
    request_id: str
    parameters: Mapping[str, Any]
    outputs: Sequence[tuple[str, Mapping[str, Any]]]
    binary: bool
    binary_outputs: Mapping[str, bool]
    inputs: Sequence[WireTensor]
    input_parameters: Mapping[int, Mapping[str, Any]]
    sent: bytes
    json_bytes: int

    def header(self) -> RequestHeader:
        """Implements `PredictRequest.header`."""
        return make_header(self.model, self.version, self.request_id, self.parameters, self.outputs)

    def message(self, reader: InputReader, shared: RequestTensors) -> bytes:
        """Implements `PredictRequest.message`."""
        reader.check_count(len(self.inputs))
        tensors = list(self.inputs)
        for position, parameters in self.input_parameters.items():
            tensor = tensors[position]
            what = f"input {tensor.name!r}"
            span = span_of(parameters, what)
            if span is not None:
                data = shared.read_tensor(span, tensor.datatype, tensor.shape, what)
                tensors[position] = tensor._replace(data=data)
        return infer_message(tensors)

    def is_binary(self, output: str) -> bool:
        """Implements `PredictRequest.is_binary`."""
        return self.binary_outputs.get(output, self.binary)


def read_document(model: str, version: str, body: bytes, json_bytes: int | None) -> InferDocument:
    """Reads a request's body: JSON, followed by the binary inputs.

    Args:
        version: a number or a label; empty for the default version.
        json_bytes: length of the JSON; None for the whole body.

    Raises:
        RequestError: the body is not a valid request.
        RequestTooLargeError: its JSON is larger than allowed.
    """
    if json_bytes is not None and json_bytes > len(body):
        raise RequestError(
            "Inference-Header-Content-Length: the body has "
            f"{counted(len(body), 'byte')}, got {json_bytes}"
        )
    split = len(body) if json_bytes is None else json_bytes
    # Copies only the JSON part.
    document = read_object(body[:split])
    parameters = object_of(document.get("parameters"), "parameters")
    binary_default = _flag(parameters.pop("binary_data_output", False), "binary_data_output")
    _check_parameters(parameters, "parameters")
    outputs: list[tuple[str, Mapping[str, Any]]] = []
    forms: dict[str, bool] = {}
    for output in objects_of(document.get("outputs"), "outputs"):
        name = text_of(output.get("name"), "an output's name")
        given = object_of(output.get("parameters"), f"output {name!r}: parameters")
        forms[name] = _flag(given.pop("binary_data", binary_default), f"output {name!r}")
        _check_parameters(given, f"output {name!r}")
        outputs.append((name, given))
    inputs, input_parameters = _inputs(document, memoryview(body)[split:])
    return InferDocument(
        text_of(model, "model"),
        text_of(version, "version"),
        "" if document.get("id") is None else text_of(document["id"], "id"),
        parameters,
        outputs,
        binary_default,
        forms,
        inputs,
        input_parameters,
        body,
        json_bytes or 0,
    )


def _inputs(
    document: dict[str, Any], binary: memoryview
) -> tuple[list[WireTensor], dict[int, Mapping[str, Any]]]:
    """The inputs, and the parameters of inputs that have any, by position."""
    inputs: list[WireTensor] = []
    found: dict[int, Mapping[str, Any]] = {}
    at = 0
    for given in objects_of(document.get("inputs"), "inputs"):
        name = text_of(given.get("name"), "an input's name")
        what = f"input {name!r}"
        # Error messages are built only for invalid input: building them takes as long as the rest.
        parameters = given.get("parameters")
        if type(parameters) is not dict:
            parameters = object_of(parameters, f"{what}: parameters")
        size = parameters.pop(_BINARY_SIZE, None)
        datatype, shape = given.get("datatype"), _shape(given.get("shape"), what)
        if type(datatype) is not str:
            datatype = text_of(datatype, f"{what}: datatype")
        if parameters:
            _check_parameters(parameters, what)
            found[len(inputs)] = parameters
        places = [size is not None, "data" in given, REGION in parameters]
        if places.count(True) != 1:
            raise RequestError(
                f"{what}: expected one of data, the parameter {_BINARY_SIZE} and the parameter "
                f"{REGION}, got {places.count(True)} of them"
            )
        data: bytes | memoryview = b""
        if size is not None:
            data = _part(binary[at:], size, what)
            at += len(data)
        elif "data" in given:
            data = _bytes_of(given["data"], datatype, shape, f"{what}: data")
        inputs.append(WireTensor(name, datatype, shape, data))
    if at != len(binary):
        raise RequestError(
            f"the last binary input is followed by {counted(len(binary) - at, 'byte')}"
        )
    return inputs, found


def _part(binary: memoryview, size: object, what: str) -> memoryview:
    """The first `size` of the remaining bytes."""
    if type(size) is not int or size < 0:
        size = whole_number(size, f"{what}: {_BINARY_SIZE}")
    if size > len(binary):
        raise RequestError(
            f"{what}: {_BINARY_SIZE} is {size}, with {counted(len(binary), 'byte')} left"
        )
    return binary[:size]


def _shape(value: object, what: str) -> list[int]:
    if not isinstance(value, list):
        raise RequestError(f"{what}: shape: expected a list of whole numbers")
    if set(map(type, value)) <= {int} and not any(abs(size) > _MOST_SIZE for size in value):
        return value
    return [whole_number(size, f"{what}: shape", least=_LEAST_INT) for size in value]


def _bytes_of(data: object, datatype: str, shape: Sequence[int], what: str) -> bytes:
    dtype = DTYPES.get(datatype)
    if datatype == BYTES:
        return packed_strings(_strings(_flat(data, shape, what), what))
    if dtype is None:
        return b""  # the input reader refuses unknown datatypes
    flat = _flat(data, shape, what)
    allowed = {int, float} if dtype.kind == "f" else {int}
    if not set(map(type, flat)) <= allowed:
        raise RequestError(
            f"{what}: expected {'numbers' if dtype.kind == 'f' else 'whole numbers'}, row by row "
            "or all in one list"
        )
    try:
        with np.errstate(over="ignore"):
            array = np.array(flat, np.float64 if dtype.kind == "f" else dtype).astype(dtype)
    except (OverflowError, ValueError) as error:
        raise RequestError(f"{what}: a number does not fit {datatype}") from error
    if dtype.kind == "f" and not np.isfinite(array).all():
        raise RequestError(f"{what}: a number does not fit {datatype}")
    return array.tobytes()


def _strings(flat: list[Any], what: str) -> list[bytes]:
    if not set(map(type, flat)) <= {str}:
        raise RequestError(f"{what}: expected strings, row by row or all in one list")
    try:
        return [text.encode() for text in flat]
    except UnicodeEncodeError as error:
        raise RequestError(f"{what}: a string is no text: {error.reason}") from error


def _flat(data: object, shape: Sequence[int], what: str) -> list[Any]:
    """The elements of a flat list, or of lists nested exactly as `shape` says."""
    if not isinstance(data, list):
        raise RequestError(f"{what}: expected a list")
    if list not in set(map(type, data)):
        return data
    if len(shape) > _MOST_DIMENSIONS:
        raise RequestError(f"{what}: more than {_MOST_DIMENSIONS} dimensions")
    rows, flat = [data], data
    for depth, size in enumerate(shape):
        if set(map(len, rows)) - {size}:
            row = next(i for i, row in enumerate(rows) if len(row) != size)
            raise RequestError(
                f"{what}{_path(shape[:depth], row)}: expected {counted(size, 'element')} as in the "
                f"shape {list(shape)}, got {len(rows[row])}"
            )
        flat = [element for row in rows for element in row]
        innermost = depth + 1 == len(shape)
        kinds = set(map(type, flat))
        if list in kinds if innermost else kinds - {list}:
            place = next(i for i, part in enumerate(flat) if isinstance(part, list) is innermost)
            raise RequestError(
                f"{what}{_path(shape[: depth + 1], place)}: expected "
                f"{'no list' if innermost else 'a list'} as in the shape {list(shape)}"
            )
        rows = flat
    return flat


def _path(shape: Sequence[int], place: int) -> str:
    """The indices of an element of an array in `shape`, as Python writes them."""
    return "".join(f"[{index}]" for index in np.unravel_index(place, shape)) if shape else ""


def _check_parameters(given: Mapping[str, Any], what: str) -> None:
    for name, value in given.items():
        text_of(name, f"{what}: a parameter's name")
        if isinstance(value, bool | float):
            continue
        if isinstance(value, int):
            whole_number(value, f"{what}: {name!r}", least=_LEAST_INT, most=_MOST_UINT)
        elif isinstance(value, str):
            text_of(value, f"{what}: {name!r}")
        else:
            raise RequestError(
                f"{what}: {name!r}: expected a string, a number or a boolean, got {kind_of(value)}"
            )


def _flag(value: object, what: str) -> bool:
    if not isinstance(value, bool):
        raise RequestError(f"{what}: binary data is wanted or not: expected a boolean")
    return value
