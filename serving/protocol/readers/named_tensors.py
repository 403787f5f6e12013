"""Separate tensors for compiled code: `NamedTensor`s of native/reader/request.h."""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from serving.protocol.native_library import NAMED_TENSOR
from serving.protocol.wire_strings import BYTES
from serving.protocol.wire_tensors import WireTensor

# `Datatype` of native/reader/input.h, by the protocol's names.
_DATATYPES = {"INT64": 1, "INT32": 2, "FP32": 3, BYTES: 5}
_MOST_SIZE = 2**31 - 1


class NamedTensors(NamedTuple):
    """Packed tensors, and the arrays they refer to."""

    packed: bytes
    data_bytes: int
    held: tuple[NDArray[np.generic], ...]  # whose addresses are in `packed`


def named_tensors(tensors: Sequence[WireTensor]) -> NamedTensors | None:
    """Packs tensors for compiled code; None if one is unusual."""
    names = [tensor.name.encode() for tensor in tensors]
    text = np.frombuffer(b"".join(names), np.uint8)
    starts = accumulate(map(len, names), initial=_address_of(text))
    held, packed, data_bytes = [text], bytearray(), 0
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
        packed += NAMED_TENSOR.pack(
            start, len(name), address, array.nbytes, code, len(shape), shape[0], last
        )
    return NamedTensors(bytes(packed), data_bytes, tuple(held))


def _address_of(array: NDArray[np.generic]) -> int:
    # `kernels.native_library.address_of` accepts only writable arrays.
    address: int = array.__array_interface__["data"][0]
    return address
