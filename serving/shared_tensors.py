"""The tensors of one request that lie in shared memory: what is said of them, read and written."""

from typing import Any

from kernels.wording import counted
from serving.shared_memory import SharedMemory, Span
from sharded_infer.errors import RequestError, RequestTooLargeError

_REGION, _SIZE, _OFFSET = (
    "shared_memory_region",
    "shared_memory_byte_size",
    "shared_memory_offset",
)


class SharedTensors:
    """One request's use of shared memory.

    Attributes:
        bytes_read: of its inputs, so far.
    """

    __slots__ = ("_memory", "bytes_read")

    def __init__(self, memory: SharedMemory | None) -> None:
        """Begins with nothing read.

        Args:
            memory: the server's; None: it offers none.
        """
        self._memory = memory
        self.bytes_read = 0

    def read(self, span: Span, expected_bytes: int, what: str) -> bytes:
        """An input's bytes.

        Args:
            span: where it lies.
            expected_bytes: by its datatype and shape.
            what: the input, for people.

        Raises:
            RequestError: the span has another size, or cannot be read.
            NotFoundError: its region is not registered.
            RequestTooLargeError: the request's inputs have more bytes than allowed.
        """
        memory = self._offered(what)
        if span.byte_size != expected_bytes:
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

    def check(self, span: Span, what: str) -> None:
        """Refuses a place for an output that cannot be one.

        Raises:
            RequestError, NotFoundError: as `SharedMemory.check`.
        """
        self._offered(what).check(span, what)

    def write(self, span: Span, data: bytes, what: str) -> None:
        """Puts an output where its client wants it.

        Raises:
            RequestError, NotFoundError: as `SharedMemory.write`.
        """
        self._offered(what).write(span, data, what)

    def _offered(self, what: str) -> SharedMemory:
        if self._memory is None:
            raise RequestError(f"{what}: shared memory is not offered here (--shared-memory)")
        return self._memory


def span_of(parameters: Any, what: str) -> Span | None:
    """What a tensor's parameters say of shared memory.

    Args:
        parameters: the protocol's, by name.
        what: has them, for people.

    Returns:
        None: nothing, the tensor is in the message.

    Raises:
        RequestError: they are malformed or incomplete.
    """
    if _REGION not in parameters:
        if _SIZE in parameters or _OFFSET in parameters:
            raise RequestError(f"{what}: parameter {_REGION!r} is missing beside the others")
        return None
    region = parameters[_REGION]
    kind = region.WhichOneof("parameter_choice")
    if kind != "string_param" or not region.string_param:
        raise RequestError(f"{what}: parameter {_REGION!r}: expected string_param, got {kind}")
    if _SIZE not in parameters:
        raise RequestError(f"{what}: parameter {_SIZE!r} is missing")
    return Span(
        region.string_param, _number(parameters, _OFFSET, what), _number(parameters, _SIZE, what)
    )


def place(parameters: Any, span: Span) -> None:
    """Says of an output where it lies.

    Args:
        parameters: the protocol's, of the output.
        span: where.
    """
    parameters[_REGION].string_param = span.region
    parameters[_SIZE].int64_param = span.byte_size
    if span.offset:
        parameters[_OFFSET].int64_param = span.offset


def _number(parameters: Any, name: str, what: str) -> int:
    if name not in parameters:
        return 0
    parameter = parameters[name]
    kind = parameter.WhichOneof("parameter_choice")
    value = getattr(parameter, kind) if kind in {"int64_param", "uint64_param"} else None
    # The response says the size in an int64.
    if value is None or not 0 <= value < 2**63:
        raise RequestError(
            f"{what}: parameter {name!r}: expected int64_param, 0 or more, got "
            f"{kind}{'' if value is None else f' {value}'}"
        )
    return int(value)
