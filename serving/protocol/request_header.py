"""Header of a request, read before its inputs: model, priority, deadline, outputs."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from kernels.wording import did_you_mean
from serving.abi import reader as abi
from serving.protocol.message_format import MessageFormat
from serving.protocol.request_tensors import parameter_kind, parameters_of, span_of
from serving.shared_memory.regions import Span
from sharded_infer.errors import RequestError

# Request parameter for unknown ids; in the answer, prefix of a table's name.
UNKNOWN_IDS = "unknown_ids"
_MAX_INT = 2**64 - 1
_NO_PLACES: Mapping[str, Span] = MappingProxyType({})


class RequestHeader(NamedTuple):
    """A request without its inputs.

    Attributes:
        model_version: as sent, or the parameter `label`; empty: the model's default.
        request_id: repeated in the response.
        priority: 1 is the highest; 0: not given.
        timeout_us: 0: not given.
        outputs: requested outputs; empty: all.
        routing_key: UTF-8 of a text, or an int64, little-endian; empty: not given.
        places: targets of outputs in shared memory, by name.
        reports_unknown_ids: the answer reports numbers of unknown ids.
    """

    model_name: str
    model_version: str
    request_id: str
    priority: int = 0
    timeout_us: int = 0
    outputs: tuple[str, ...] = ()
    places: Mapping[str, Span] = _NO_PLACES
    reports_unknown_ids: bool = False
    routing_key: bytes = b""

    def output_positions(self, names: Sequence[str]) -> tuple[int, ...]:
        """Positions of the requested outputs in the model's `names`, in order.

        Raises:
            RequestError: an output is unknown.
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


def read_header(message: bytes, form: MessageFormat = MessageFormat.INFER) -> RequestHeader | None:
    """Reads a serialized message's header without protobuf; its inputs may be malformed.

    Returns:
        None if compiled code declines, because the message is unusual or malformed.
        Then `header_of` or `predict_header_of` of the parsed message decides.
    """
    header = abi.Header()
    read = abi.read_predict_header if form is MessageFormat.PREDICT else abi.read_header
    if not read(message, len(message), header):
        return None
    outputs = [_part(message, text).decode() for text in header.outputs[: header.output_count]]
    places = {
        name: Span(_part(message, place.region).decode(), place.offset, place.byte_size)
        for name, place in zip(outputs, header.places, strict=False)
        if place.region.size
    }
    return RequestHeader(
        _part(message, header.name).decode(),
        _part(message, header.version).decode(),
        _part(message, header.id).decode(),
        header.priority,
        header.timeout_us,
        tuple(outputs),
        places or _NO_PLACES,
        reports_unknown_ids=bool(header.reports_unknown),
        routing_key=number_key(header.key_number)
        if header.key_is_number
        else _part(message, header.key),
    )


def _part(message: bytes, text: abi.Text) -> bytes:
    start: int = text.start
    return message[start : start + text.size]


def header_of(request: Any) -> RequestHeader:
    """Header of a ModelInferRequest; raises RequestError as `make_header`."""
    return make_header(
        request.model_name,
        request.model_version,
        request.id,
        parameters_of(request.parameters),
        [(output.name, parameters_of(output.parameters)) for output in request.outputs],
    )


def make_header(
    model: str,
    version: str,
    request_id: str,
    parameters: Mapping[str, Any],
    outputs: Sequence[tuple[str, Mapping[str, Any]]],
) -> RequestHeader:
    """Header of a request of the Open Inference Protocol.

    Args:
        version: empty: the parameter `label`, or the default.
        parameters: plain values by name.
        outputs: requested outputs with their parameters.

    Raises:
        RequestError: a parameter is not a valid number, label, flag or span.
    """
    return RequestHeader(
        model,
        _version(version, parameters),
        request_id,
        _number(parameters, "priority"),
        _number(parameters, "timeout"),
        tuple(name for name, _ in outputs),
        _places(outputs) or _NO_PLACES,
        _flag(parameters, UNKNOWN_IDS),
        _routing_key(parameters),
    )


def _places(outputs: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, Span]:
    places: dict[str, Span] = {}
    for name, parameters in outputs:
        what = f"output {name!r}"
        if "classification" in parameters:
            raise RequestError(f"{what}: parameter 'classification' is not offered: scores only")
        span = span_of(parameters, what)
        if span is not None:
            if name in places:
                raise RequestError(f"{what} is to be put in two places")
            places[name] = span
    return places


def predict_header_of(request: Any) -> RequestHeader:
    """Header of a PredictRequest message."""
    return RequestHeader(
        request.model,
        request.version,
        request.request_id,
        request.priority,
        outputs=tuple(request.outputs),
        reports_unknown_ids=request.report_unknown_ids,
        routing_key=number_key(request.number_key)
        if request.HasField("number_key")
        else request.text_key.encode(),
    )


def number_key(number: int) -> bytes:
    """Routing key of an int64."""
    return number.to_bytes(8, "little", signed=True)


def _routing_key(parameters: Mapping[str, Any]) -> bytes:
    key = parameters.get("routing_key", "")
    kind = parameter_kind(key)
    if kind == "string_param":
        return bytes(key.encode())
    if kind == "int64_param" and key >= -(2**63):
        return number_key(key)
    raise RequestError(f"parameter 'routing_key': expected string_param or int64_param, got {kind}")


def _version(version: str, parameters: Mapping[str, Any]) -> str:
    if "label" not in parameters:
        return version
    label = parameters["label"]
    if not isinstance(label, str) or not label:
        kind = parameter_kind(label)
        raise RequestError(f"parameter 'label': expected string_param of a label, got {kind}")
    if version:
        raise RequestError(
            f"both a version, {version!r}, and a label, {label!r}, are asked for; expected one"
        )
    return label


def _flag(parameters: Mapping[str, Any], name: str) -> bool:
    value = parameters.get(name, False)
    if not isinstance(value, bool):
        raise RequestError(f"parameter {name!r}: expected bool_param, got {parameter_kind(value)}")
    return value


def _number(parameters: Mapping[str, Any], name: str) -> int:
    value = parameters.get(name, 0)
    kind = parameter_kind(value)
    is_number = kind in {"int64_param", "uint64_param"}
    if not is_number or not 0 <= value <= _MAX_INT:
        raise RequestError(
            f"parameter {name!r}: expected int64_param or uint64_param, 0 or more, got "
            f"{kind}{f' {value}' if is_number else ''}"
        )
    return int(value)
