"""ModelInferResponse messages to HTTP answers: JSON, and outputs in binary where wanted."""

import json
import math
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2

from serving.rest.compression import chosen_encoding, deflate
from serving.rest.exchange import BINARY, JSON, HttpAnswer
from serving.rest.infer_request import OutputForms

HEADER_LENGTH = "Inference-Header-Content-Length"
_REGION = "shared_memory_region"


def infer_answer(message: bytes, forms: OutputForms, accept_encoding: str = "") -> HttpAnswer:
    """The answer to a predict request.

    Args:
        message: a serialized ModelInferResponse, all of whose outputs are raw.
        forms: which outputs are wanted in binary.
        accept_encoding: the request's header.

    An output has `parameters` where it is binary, and nowhere else, as Triton's have: its C++
    client (perf_analyzer's) takes any for those of a binary one. The client knows the region.
    """
    response = service_pb2.ModelInferResponse.FromString(message)
    document: dict[str, Any] = {
        "model_name": response.model_name,
        "model_version": response.model_version,
    }
    if response.id:
        document["id"] = response.id
    if response.parameters:
        document["parameters"] = parameters_of(response.parameters)
    outputs: list[dict[str, Any]] = []
    binary: list[bytes] = []
    for output, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        entry: dict[str, Any] = {
            "name": output.name,
            "datatype": output.datatype,
            "shape": list(output.shape),
        }
        if _REGION not in output.parameters:
            if forms.is_binary(output.name):
                entry["parameters"] = {"binary_data_size": len(raw)}
                binary.append(raw)
            else:
                entry["data"] = _numbers(raw)
        outputs.append(entry)
    document["outputs"] = outputs
    text = json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
    headers: tuple[tuple[str, str], ...] = ()
    if binary:
        headers = ((HEADER_LENGTH, str(len(text))),)
    body = b"".join((text, *binary))
    headers = (*headers, ("Vary", "Accept-Encoding"))
    encoding = chosen_encoding(accept_encoding)
    smaller = deflate(body, encoding)
    if smaller is not None:
        body, headers = smaller, (*headers, ("Content-Encoding", encoding))
    return HttpAnswer(200, body, BINARY if binary else JSON, headers)


def parameters_of(parameters: Any) -> dict[str, Any]:
    """A message's parameters as plain values."""
    return {
        name: getattr(parameter, parameter.WhichOneof("parameter_choice"))
        for name, parameter in sorted(parameters.items())
        if parameter.WhichOneof("parameter_choice")
    }


def _numbers(raw: bytes) -> list[float | None]:
    """Scores, row-major in one list; null where JSON has no number: NaN and infinities."""
    values = np.frombuffer(raw, "<f4")
    numbers: list[float | None] = values.tolist()
    if not np.isfinite(values).all():
        return [n if n is not None and math.isfinite(n) else None for n in numbers]
    return numbers
