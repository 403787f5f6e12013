"""Wire tensors to model inputs, independent of transports."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2

from kernels.wording import counted
from serving.protocol.wire_numbers import numbers_of
from serving.protocol.wire_strings import BYTES, hashed_strings
from sharded_infer.errors import RequestError
from sharded_infer.inputs.request_reader import RequestReader

MOST_DIMENSIONS = 64  # NumPy's
# Prefixes of a model's parameters: of an input's name, for its sequence; of a sequence's name, for
# how many ids of a sample are used, and which.
SEQUENCE, MAX_LENGTH, KEEP = "sequence.", "max_length.", "keep."

# Numbers on the wire are little-endian whatever the machine is.
DTYPES: dict[str, np.dtype[np.generic]] = {
    "INT64": np.dtype("<i8"),
    "INT32": np.dtype("<i4"),
    "FP32": np.dtype("<f4"),
}


class WireTensor(NamedTuple):
    """A tensor as sent.

    Attributes:
        datatype: of the Open Inference Protocol, such as `INT64`.
        data: its bytes, or the elements of typed contents: bytes objects of BYTES.
    """

    name: str
    datatype: str
    shape: Sequence[int]
    data: bytes | memoryview | Sequence[float] | Sequence[bytes]


def infer_message(tensors: Iterable[WireTensor]) -> bytes:
    """A ModelInferRequest of inputs alone, whose data are bytes."""
    request = service_pb2.ModelInferRequest()
    for name, datatype, shape, data in tensors:
        request.inputs.add(name=name, datatype=datatype, shape=shape)
        request.raw_input_contents.append(bytes(cast("bytes | memoryview", data)))
    return bytes(request.SerializeToString())


def tensor_arrays(
    tensors: Iterable[WireTensor], reader: RequestReader
) -> dict[str, NDArray[np.generic]]:
    """Arrays of a request's tensors by name, in which strings are hashed.

    They are views of the tensors' bytes where possible.

    Raises:
        RequestError: a tensor is malformed, or came twice.
        RequestTooLargeError: there are more strings than ids may come.
    """
    arrays: dict[str, NDArray[np.generic]] = {}
    for tensor in tensors:
        if tensor.name in arrays:
            raise RequestError(f"input {tensor.name!r} came twice")
        arrays[tensor.name] = _array(tensor, reader)
    return arrays


def _array(tensor: WireTensor, reader: RequestReader) -> NDArray[np.generic]:
    hashed = reader.strings.get(tensor.name) if tensor.datatype == BYTES else None
    if hashed is not None:
        _check_shape(tensor)
        reader.check_count(math.prod(tensor.shape))
        return _shaped(tensor, hashed_strings(tensor.name, tensor.shape, tensor.data, hashed))
    dtype = DTYPES.get(tensor.datatype)
    if dtype is None:
        raise RequestError(
            f"input {tensor.name!r}: datatype {tensor.datatype!r}, expected "
            f"{reader.datatypes(tensor.name)}"
        )
    _check_shape(tensor)
    elements = math.prod(tensor.shape)
    if isinstance(tensor.data, (bytes, memoryview)):
        if len(tensor.data) != elements * dtype.itemsize:
            raise RequestError(
                f"input {tensor.name!r}: {tensor.datatype} {list(tensor.shape)} is "
                f"{counted(elements * dtype.itemsize, 'byte')}, got {len(tensor.data)}"
            )
        # A copy of a part of a body, which may begin at any address.
        return _shaped(tensor, np.frombuffer(bytes(tensor.data), dtype))
    if len(tensor.data) != elements:
        raise RequestError(
            f"input {tensor.name!r}: {tensor.datatype} {list(tensor.shape)} has {elements} "
            f"elements, got {len(tensor.data)}"
        )
    return _shaped(tensor, numbers_of(tensor.data, dtype))


def _check_shape(tensor: WireTensor) -> None:
    wrong = wrong_shape(tensor.shape)
    if wrong is not None:
        raise RequestError(f"input {tensor.name!r}: {wrong}")


def wrong_shape(shape: Sequence[int]) -> str | None:
    """Why a shape is invalid, or None, without the product: a million sizes would take hours."""
    if len(shape) > MOST_DIMENSIONS:
        return f"too many dimensions: {len(shape)}, expected at most {MOST_DIMENSIONS}"
    if any(size < 0 for size in shape):
        return f"shape {list(shape)} has a negative size"
    return None


def _shaped(tensor: WireTensor, flat: NDArray[np.generic]) -> NDArray[np.generic]:
    try:
        return flat.reshape(tensor.shape)
    except ValueError as error:
        # NumPy's limits; beside a 0, sizes of any magnitude agree with the elements.
        raise RequestError(
            f"input {tensor.name!r}: shape {list(tensor.shape)} has too many dimensions, or sizes "
            "that are too large"
        ) from error
