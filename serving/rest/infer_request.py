"""JSON predict requests, with tensors in binary or not, to ModelInferRequest messages.

body     JSON, then the binary inputs' bytes in the order of the inputs
message  what protobuf writes of everything but contents, then the contents as they came
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2

from kernels.wording import counted
from serving.codec import DTYPES
from serving.rest.json_text import object_of, objects_of, read_object, text_of, whole_number
from sharded_infer.errors import RequestError

_REGION = "shared_memory_region"
_BINARY_SIZE = "binary_data_size"
# Of raw_input_contents (7) in ModelInferRequest: a field with a length.
_RAW_TAG = b"\x3a"
_MOST_DIMENSIONS = 64
_SHORT = tuple(bytes((number,)) for number in range(128))  # as `_varint` writes them
_MOST_KEPT = 256  # characters and dimensions of an input that is kept
_LEAST_INT, _MOST_UINT = -(2**63), 2**64 - 1


@dataclass(frozen=True, slots=True)
class OutputForms:
    """Which outputs a client wants in binary.

    Attributes:
        binary: those that it says nothing of.
        by_name: the others.
    """

    binary: bool
    by_name: Mapping[str, bool]

    def is_binary(self, name: str) -> bool:
        """Whether an output is to be in binary."""
        return self.by_name.get(name, self.binary)


def infer_message(
    model: str, version: str, body: bytes, json_bytes: int | None
) -> tuple[bytes, OutputForms]:
    """Makes a message of a request's body.

    Args:
        model: its name.
        version: its number or label; empty: the default.
        body: JSON, and the binary inputs.
        json_bytes: how much of it is JSON; None: all.

    Returns:
        A serialized ModelInferRequest, and how its outputs are wanted.

    Raises:
        RequestError: the body is no request.
        RequestTooLargeError: its JSON is larger than allowed.
    """
    if json_bytes is not None and json_bytes > len(body):
        raise RequestError(
            "Inference-Header-Content-Length: the body has "
            f"{counted(len(body), 'byte')}, got {json_bytes}"
        )
    split = len(body) if json_bytes is None else json_bytes
    # A copy of the JSON part alone.
    document = read_object(body[:split])
    request = service_pb2.ModelInferRequest(
        model_name=text_of(model, "model"),
        model_version=text_of(version, "version"),
        id=text_of(document.get("id", ""), "id"),
    )
    parameters = object_of(document.get("parameters"), "parameters")
    binary_default = _flag(parameters.pop("binary_data_output", False), "binary_data_output")
    _set_parameters(request.parameters, parameters, "parameters")
    forms: dict[str, bool] = {}
    for output in objects_of(document.get("outputs"), "outputs"):
        name = text_of(output.get("name"), "an output's name")
        given = object_of(output.get("parameters"), f"output {name!r}: parameters")
        forms[name] = _flag(given.pop("binary_data", binary_default), f"output {name!r}")
        tensor = request.outputs.add(name=name)
        _set_parameters(tensor.parameters, given, f"output {name!r}")
    heads, contents = _inputs(document, memoryview(body)[split:])
    # Messages one behind the other are one: their repeated fields are appended.
    head = b"".join((request.SerializeToString(), *heads))
    return _joined(head, contents), OutputForms(binary_default, forms)


def _inputs(
    document: dict[str, Any], binary: memoryview
) -> tuple[list[bytes], list[bytes | memoryview]]:
    """The inputs without their contents, each in a message of its own; and the contents."""
    heads: list[bytes] = []
    contents: list[bytes | memoryview] = []
    at = 0
    for given in objects_of(document.get("inputs"), "inputs"):
        name = text_of(given.get("name"), "an input's name")
        what = f"input {name!r}"
        # Where all is as it should be no error's text is made: it takes as long as the rest.
        parameters = given.get("parameters")
        if type(parameters) is not dict:
            parameters = object_of(parameters, f"{what}: parameters")
        size = parameters.pop(_BINARY_SIZE, None)
        heads.append(_head(name, given.get("datatype"), given.get("shape"), parameters))
        places = [size is not None, "data" in given, _REGION in parameters]
        if places.count(True) != 1:
            raise RequestError(
                f"{what}: expected one of data, the parameter {_BINARY_SIZE} and the parameter "
                f"{_REGION}, got {places.count(True)} of them"
            )
        if size is not None:
            if type(size) is not int or size < 0:
                whole_number(size, f"{what}: {_BINARY_SIZE}")
            if size > len(binary) - at:
                raise RequestError(
                    f"{what}: {_BINARY_SIZE} is {size}, with "
                    f"{counted(len(binary) - at, 'byte')} left"
                )
            contents.append(binary[at : at + size])
            at += size
        elif "data" in given:
            contents.append(_bytes_of(given["data"], given["datatype"], what))
    if at != len(binary):
        raise RequestError(
            f"the last binary input is followed by {counted(len(binary) - at, 'byte')}"
        )
    return heads, contents


def _head(name: str, datatype: object, shape: object, parameters: Mapping[str, Any]) -> bytes:
    # True is 1 to a cache, so the types are looked at here.
    if type(datatype) is str and type(shape) is list and not parameters:
        usual = len(name) + len(datatype) + len(shape) <= _MOST_KEPT
        if usual and set(map(type, shape)) <= {int}:
            return _usual_head(name, datatype, tuple(shape))
    return _made_head(name, datatype, shape, parameters)


@lru_cache(maxsize=1024)
def _usual_head(name: str, datatype: str, shape: tuple[int, ...]) -> bytes:
    """A model's inputs and their shapes come again and again."""
    return _made_head(name, datatype, list(shape), {})


def _made_head(name: str, datatype: object, shape: object, parameters: Mapping[str, Any]) -> bytes:
    request, what = service_pb2.ModelInferRequest(), f"input {name!r}"
    tensor = request.inputs.add(
        name=name,
        datatype=text_of(datatype, f"{what}: datatype"),
        shape=_shape(shape, what),
    )
    _set_parameters(tensor.parameters, parameters, what)
    made: bytes = request.SerializeToString()
    return made


def _shape(value: object, what: str) -> list[int]:
    if not isinstance(value, list):
        raise RequestError(f"{what}: shape: expected a list of whole numbers")
    return [whole_number(size, f"{what}: shape", least=_LEAST_INT) for size in value]


def _bytes_of(data: object, datatype: str, what: str) -> bytes:
    dtype = DTYPES.get(datatype)
    if dtype is None:
        return b""  # the codec says which datatypes there are
    flat = _flat(data, what)
    allowed = {int, float} if dtype.kind == "f" else {int}
    if not set(map(type, flat)) <= allowed:
        raise RequestError(
            f"{what}: data: expected {'numbers' if dtype.kind == 'f' else 'whole numbers'}, row "
            "by row or all in one list"
        )
    try:
        with np.errstate(over="ignore"):
            array = np.array(flat, np.float64 if dtype.kind == "f" else dtype).astype(dtype)
    except (OverflowError, ValueError) as error:
        raise RequestError(f"{what}: data: a number does not fit {datatype}") from error
    if dtype.kind == "f" and not np.isfinite(array).all():
        raise RequestError(f"{what}: data: a number does not fit {datatype}")
    return array.tobytes()


def _flat(data: object, what: str) -> list[Any]:
    if not isinstance(data, list):
        raise RequestError(f"{what}: data: expected a list")
    for _ in range(_MOST_DIMENSIONS):
        kinds = set(map(type, data))
        if list not in kinds:
            return data
        if kinds != {list}:
            raise RequestError(f"{what}: data: lists stand beside numbers")
        data = [element for row in data for element in row]
    raise RequestError(f"{what}: data: more than {_MOST_DIMENSIONS} dimensions")


def _set_parameters(target: Any, given: Mapping[str, Any], what: str) -> None:
    for name, value in given.items():
        parameter = target[text_of(name, f"{what}: a parameter's name")]
        if isinstance(value, bool):
            parameter.bool_param = value
        elif isinstance(value, int):
            value = whole_number(value, f"{what}: {name!r}", least=_LEAST_INT, most=_MOST_UINT)
            if value < 2**63:
                parameter.int64_param = value
            else:
                parameter.uint64_param = value
        elif isinstance(value, float):
            parameter.double_param = value
        else:
            parameter.string_param = text_of(value, f"{what}: {name!r}")


def _flag(value: object, what: str) -> bool:
    if not isinstance(value, bool):
        raise RequestError(f"{what}: binary data is wanted or not: expected a boolean")
    return value


def _joined(head: bytes, contents: Sequence[bytes | memoryview]) -> bytes:
    """Appends the contents to a message that has none: copied once, by no protobuf object."""
    parts: list[bytes | memoryview] = [head]
    for content in contents:
        length = len(content)
        parts += (_RAW_TAG, _SHORT[length] if length < 128 else _varint(length), content)
    return b"".join(parts)


def _varint(number: int) -> bytes:
    """A length as protobuf writes it: seven bits a byte, the lowest first."""
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)
