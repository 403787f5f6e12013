"""Tensors of a request in shared memory: parameters, reading and writing."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from kernels.wording import counted
from serving.protocol.wire_strings import BYTES
from serving.protocol.wire_tensors import DTYPES, wrong_shape
from serving.shared_memory.regions import SharedMemory, Span
from sharded_infer.errors import RequestError, RequestTooLargeError

REGION, _SIZE, _OFFSET = (
    "shared_memory_region",
    "shared_memory_byte_size",
    "shared_memory_offset",
)


class RequestTensors:
    """One request's use of shared memory; `bytes_read` counts its inputs so far."""

    __slots__ = ("_memory", "bytes_read")

    def __init__(self, memory: SharedMemory | None) -> None:
        """Starts without inputs; no `memory` means that it is not offered."""
        self._memory = memory
        self.bytes_read = 0

    def read(self, span: Span, expected_bytes: int | None, what: str) -> bytes:
        """Reads an input's bytes; errors name it `what`.

        Args:
            expected_bytes: by its datatype and shape; None: they do not tell.

        Raises:
            RequestError: the span's size is not `expected_bytes` (None: any), or it cannot be read.
            NotFoundError: its region is not registered.
            RequestTooLargeError: the request's inputs have more bytes than allowed.
        """
        memory = self._offered(what)
        if expected_bytes is not None and span.byte_size != expected_bytes:
            raise RequestError(
                f"{what}: expected {counted(expected_bytes, 'byte')} by its datatype and shape, "
                f"got {span.byte_size} in shared memory"
            )
        self.bytes_read += span.byte_size
        if self.bytes_read > memory.most_bytes:
            raise RequestTooLargeError(
                f"{what}: with it the inputs in shared memory have "
                f"{counted(self.bytes_read, 'byte')}, at "
                f"most {memory.most_bytes} are allowed"
            )
        return memory.read(span, what)

    def read_tensor(self, span: Span, datatype: str, shape: Sequence[int], what: str) -> bytes:
        """Calls `read`; empty if datatype or shape are invalid, which the codec refuses."""
        if datatype == BYTES:
            return self.read(span, None, what)
        dtype = DTYPES.get(datatype)
        if dtype is None or wrong_shape(shape) is not None:
            return b""
        return self.read(span, math.prod(shape) * dtype.itemsize, what)

    def check(self, span: Span, what: str) -> None:
        """Refuses an invalid target of an output; raises as `SharedMemory.check`."""
        self._offered(what).check(span, what)

    def write(self, span: Span, data: bytes, what: str) -> None:
        """Writes an output to its target; raises as `SharedMemory.write`."""
        self._offered(what).write(span, data, what)

    def _offered(self, what: str) -> SharedMemory:
        if self._memory is None:
            raise RequestError(f"{what}: shared memory is not offered here (--shared-memory)")
        return self._memory


def parameters_of(parameters: Any) -> dict[str, Any]:
    """A message's parameters as plain values; None where the message has no value."""
    values = {}
    for name, parameter in parameters.items():
        kind = parameter.WhichOneof("parameter_choice")
        values[name] = None if kind is None else getattr(parameter, kind)
    return values


def parameter_kind(value: object) -> str | None:
    """The protocol's field for a plain value, as errors name it."""
    if isinstance(value, int) and not isinstance(value, bool):
        return "int64_param" if value < 2**63 else "uint64_param"
    kinds = {bool: "bool_param", float: "double_param", str: "string_param"}
    return kinds.get(type(value))


def span_of(parameters: Mapping[str, Any], what: str) -> Span | None:
    """Shared-memory span in a tensor's plain parameters; None if the tensor is in the message.

    Raises:
        RequestError: they are malformed or incomplete.
    """
    if REGION not in parameters:
        if _SIZE in parameters or _OFFSET in parameters:
            raise RequestError(f"{what}: parameter {REGION!r} is missing beside the others")
        return None
    region = parameters[REGION]
    if not isinstance(region, str) or not region:
        raise RequestError(
            f"{what}: parameter {REGION!r}: expected string_param, got {parameter_kind(region)}"
        )
    if _SIZE not in parameters:
        raise RequestError(f"{what}: parameter {_SIZE!r} is missing")
    return Span(region, _number(parameters, _OFFSET, what), _number(parameters, _SIZE, what))


def _number(parameters: Mapping[str, Any], name: str, what: str) -> int:
    value = parameters.get(name, 0)
    kind = parameter_kind(value)
    is_number = kind in {"int64_param", "uint64_param"}
    # The response has the size as int64.
    if not is_number or not 0 <= value < 2**63:
        raise RequestError(
            f"{what}: parameter {name!r}: expected int64_param, 0 or more, got "
            f"{kind}{f' {value}' if is_number else ''}"
        )
    return int(value)
