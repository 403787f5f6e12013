"""Separate tensors for compiled code."""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from serving.abi.reader import Datatype, NamedTensor
from serving.protocol.wire_strings import BYTES
from serving.protocol.wire_tensors import WireTensor

_NAMED_TENSOR = np.dtype(NamedTensor)
_DATATYPES = {
    "INT64": Datatype.INT64_TYPE,
    "INT32": Datatype.INT32_TYPE,
    "FP32": Datatype.FP32_TYPE,
    BYTES: Datatype.BYTES_TYPE,
}
_MOST_SIZE = 2**31 - 1


class NamedTensors(NamedTuple):
    """`NamedTensor`s, and the arrays they refer to."""

    tensors: NDArray[np.void]
    data_bytes: int
    held: tuple[NDArray[np.generic], ...]


def named_tensors(tensors: Sequence[WireTensor]) -> NamedTensors | None:
    """Packs tensors for compiled code; None if one is unusual."""
    names = [tensor.name.encode() for tensor in tensors]
    text = np.frombuffer(b"".join(names), np.uint8)
    starts = accumulate(map(len, names), initial=_address_of(text))
    held, listed, data_bytes = [text], [], 0
    for tensor, name, start in zip(tensors, names, starts, strict=False):
        code, shape = _DATATYPES.get(tensor.datatype), tensor.shape
        if code is None or len(shape) not in (1, 2) or not all(0 <= n <= _MOST_SIZE for n in shape):
            return None
        if not isinstance(tensor.data, (bytes, memoryview)):
            return None
        array = np.frombuffer(tensor.data, np.uint8)
        held.append(array)
        data_bytes += array.nbytes
        address = _address_of(array)
        last = shape[1] if len(shape) == 2 else 0
        sizes = shape[0], last
        listed.append((start, len(name), address, array.nbytes, code, len(shape), sizes))
    return NamedTensors(np.array(listed, _NAMED_TENSOR), data_bytes, tuple(held))


def _address_of(array: NDArray[np.generic]) -> int:
    # `kernels.native_library.address_of` accepts only writable arrays.
    address: int = array.__array_interface__["data"][0]
    return address
