"""HTTP answers with scores: JSON, with outputs in binary where requested."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from serving.http_api.compression import chosen_encoding, deflate
from serving.http_api.exchange import BINARY, JSON, HttpAnswer
from serving.protocol.infer_writer import DEFAULT_TABLES, LABEL
from serving.protocol.request_header import UNKNOWN_IDS

HEADER_LENGTH = "Inference-Header-Content-Length"
# `json.dumps` with these options would create an encoder for each answer.
_write = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


@dataclass(frozen=True, slots=True)
class OutputForms:
    """Outputs that a client requests in binary, with a default for those not in `by_name`."""

    binary: bool
    by_name: Mapping[str, bool]

    def is_binary(self, name: str) -> bool:
        """True if an output is requested in binary."""
        return self.by_name.get(name, self.binary)


class ScoredOutput(NamedTuple):
    """One output `[B]` or `[B, K]`: FP32, little-endian, row-major, or None in shared memory."""

    name: str
    shape: Sequence[int]
    data: bytes | None


class InferScores(NamedTuple):
    """Content of the answer to a predict request."""

    model: str
    version: str
    request_id: str
    outputs: Sequence[ScoredOutput]
    default_tables: Sequence[str] = ()
    unknown_ids: Sequence[tuple[str, int]] = ()
    label: str = ""


def infer_answer(scores: InferScores, forms: OutputForms, accept_encoding: str = "") -> HttpAnswer:
    """Answer to a predict request, compressed as Accept-Encoding allows.

    As in Triton's answers, only binary outputs have `parameters`: Triton's C++ client, used by
    perf_analyzer, treats any `parameters` as those of a binary output. For an output in shared
    memory the client knows the region.
    """
    document: dict[str, Any] = {"model_name": scores.model, "model_version": scores.version}
    if scores.request_id:
        document["id"] = scores.request_id
    parameters: dict[str, Any] = {f"{UNKNOWN_IDS}.{t}": count for t, count in scores.unknown_ids}
    if scores.label:
        parameters[LABEL] = scores.label
    if scores.default_tables:
        parameters[DEFAULT_TABLES] = ",".join(scores.default_tables)
    if parameters:
        document["parameters"] = parameters
    outputs: list[dict[str, Any]] = []
    binary: list[bytes] = []
    for name, shape, data in scores.outputs:
        entry: dict[str, Any] = {"name": name, "datatype": "FP32", "shape": shape}
        if data is not None:
            if forms.is_binary(name):
                entry["parameters"] = {"binary_data_size": len(data)}
                binary.append(data)
            else:
                entry["data"] = _numbers(data)
        outputs.append(entry)
    document["outputs"] = outputs
    text = _write(document).encode()
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


def _numbers(raw: bytes) -> list[float | None]:
    """Scores in one row-major list, with null for NaN and infinities, which JSON lacks."""
    values = np.frombuffer(raw, "<f4")
    numbers: list[float | None] = values.tolist()
    if not np.isfinite(values).all():
        return [n if n is not None and math.isfinite(n) else None for n in numbers]
    return numbers
