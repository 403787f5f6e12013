"""What a request asks for, before its inputs are read: model, priority, deadline, outputs."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from kernels.wording import did_you_mean
from serving.native_request import LIBRARIES, Header
from serving.shared_memory import Span
from serving.shared_tensors import span_of
from serving.wire_form import WireForm
from sharded_infer.errors import RequestError

_MAX_INT = 2**64 - 1
_NO_PLACES: Mapping[str, Span] = MappingProxyType({})


class RequestHeader(NamedTuple):
    """A request without its inputs.

    Attributes:
        model_name: as it came.
        model_version: as it came, or the parameter `label`; empty is the model's default.
        request_id: the client's own, for the response.
        priority: 1 is the highest; 0 was not given.
        timeout_us: how long the client waits, in microseconds; 0 was not given.
        outputs: names of the outputs asked for; none is all.
        places: where in shared memory outputs are to be put, by their names.
    """

    model_name: str
    model_version: str
    request_id: str
    priority: int = 0
    timeout_us: int = 0
    outputs: tuple[str, ...] = ()
    places: Mapping[str, Span] = _NO_PLACES

    def output_positions(self, names: Sequence[str]) -> tuple[int, ...]:
        """Which of a model's outputs are asked for, in the model's order.

        Args:
            names: the model's outputs.

        Raises:
            RequestError: one that the model does not have.
        """
        if not self.outputs:
            return tuple(range(len(names)))
        for output in self.outputs:
            if output not in names:
                raise RequestError(
                    f"output {output!r} is not one of the model's: {', '.join(names)}"
                    f"{did_you_mean(output, names)}"
                )
        return tuple(i for i, name in enumerate(names) if name in self.outputs)


def read_header(message: bytes, form: WireForm = WireForm.INFER) -> RequestHeader | None:
    """Reads a serialized message's header without protobuf.

    Args:
        message: its inputs are not looked into: they may still be malformed.
        form: of the message.

    Returns:
        None where compiled code cannot tell: the message is unusual or malformed, or there is no
        compiled code. Then the parsed message decides: `header_of`, `predict_header_of`.
    """
    if LIBRARIES is None:
        return None
    header = Header()
    library = LIBRARIES[1]
    read = library.sharded_infer_read_header
    if form is WireForm.PREDICT:
        read = library.sharded_infer_read_predict_header
    if not read(message, len(message), header):
        return None
    (
        name, name_size, version, version_size, request_id, id_size, priority, timeout_us, outputs
    ) = header[:9]  # fmt: skip
    return RequestHeader(
        message[name : name + name_size].decode("ascii"),
        message[version : version + version_size].decode("ascii"),
        message[request_id : request_id + id_size].decode("ascii"),
        priority,
        timeout_us,
        tuple(
            message[header[at] : header[at] + header[at + 1]].decode("ascii")
            for at in range(9, 9 + 2 * outputs, 2)
        )
        if outputs
        else (),
    )


def header_of(request: Any) -> RequestHeader:
    """The header of a ModelInferRequest message.

    Raises:
        RequestError: a parameter that is no such number, label or place.
    """
    places: dict[str, Span] = {}
    for output in request.outputs:
        what = f"output {output.name!r}"
        if "classification" in output.parameters:
            raise RequestError(f"{what}: parameter 'classification' is not offered: scores only")
        span = span_of(output.parameters, what)
        if span is not None:
            if output.name in places:
                raise RequestError(f"{what} is to be put in two places")
            places[output.name] = span
    return RequestHeader(
        request.model_name,
        _version(request),
        request.id,
        _number(request, "priority"),
        _number(request, "timeout"),
        tuple(output.name for output in request.outputs),
        places or _NO_PLACES,
    )


def predict_header_of(request: Any) -> RequestHeader:
    """The header of a PredictRequest message."""
    return RequestHeader(
        request.model,
        request.version,
        request.request_id,
        request.priority,
        outputs=tuple(request.outputs),
    )


def _version(request: Any) -> str:
    version: str = request.model_version
    if "label" not in request.parameters:
        return version
    parameter = request.parameters["label"]
    kind = parameter.WhichOneof("parameter_choice")
    label: str = parameter.string_param
    if kind != "string_param" or not label:
        raise RequestError(f"parameter 'label': expected string_param of a label, got {kind}")
    if version:
        raise RequestError(
            f"both a version, {version!r}, and a label, {label!r}, are asked for; expected one"
        )
    return label


def _number(request: Any, name: str) -> int:
    if name not in request.parameters:
        return 0
    parameter = request.parameters[name]
    kind = parameter.WhichOneof("parameter_choice")
    value = getattr(parameter, kind) if kind in {"int64_param", "uint64_param"} else None
    if value is None or not 0 <= value <= _MAX_INT:
        raise RequestError(
            f"parameter {name!r}: expected int64_param or uint64_param, 0 or more, got "
            f"{kind}{'' if value is None else f' {value}'}"
        )
    return int(value)
