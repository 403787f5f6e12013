import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from serving.bench.load.http_generator import binary_body
from serving.http_api.infer_answer import OutputForms, infer_answer
from serving.http_api.json_codec import JsonCodec, read_request
from serving.protocol.codec import MESSAGE_CODECS, Codec, Scored
from serving.protocol.infer_writer import InferWriter
from serving.protocol.predict_method import PredictMethod
from serving.protocol.predict_writer import PredictWriter
from serving.protocol.readers.input_reader import InputReader
from serving.protocol.request_header import RequestHeader
from serving.protocol.request_tensors import RequestTensors
from serving.protocol.version_io import VersionIO
from sharded_infer.client.request_message import request_message
from sharded_infer.v1 import predictor_pb2
from tests.support.requests_by_chance import MAX_BATCH, SPEC, Arrays, check_same, serialized

IO = VersionIO(
    InputReader(SPEC, max_batch=MAX_BATCH),
    InferWriter("small", 3, ("score", "labels")),
    PredictWriter("small", 3, ("score", "labels")),
)
INPUTS: Arrays = {
    "context": np.arange(6, dtype=np.float32).reshape(2, 3),
    "bid": np.ones((2, 1), np.float32),
    "item": np.array([1, 2]),
}
MESSAGE = serialized(INPUTS, id="7")
_, TEXT, CONTENTS = binary_body(MESSAGE)
TEXT = TEXT.replace(b"{", b'{"id":"7",', 1)
IN_JSON = json.dumps(
    {
        "id": "7",
        "inputs": [
            {"name": n, "shape": a.shape, "datatype": d, "data": a.ravel().tolist()}
            for (n, a), d in zip(INPUTS.items(), ("FP32", "FP32", "INT64"), strict=True)
        ],
    }
).encode()
Read = tuple[Codec[Any, Any], Any]
FORMS: dict[str, Callable[[], Read]] = {
    "ModelInferRequest": lambda: (MESSAGE_CODECS[PredictMethod.MODEL_INFER], MESSAGE),
    "PredictRequest": lambda: (
        MESSAGE_CODECS[PredictMethod.PREDICT],
        request_message(SPEC.name, candidates=INPUTS, request_id="7"),
    ),
    "binary tensors": lambda: (
        JsonCodec(),
        read_request(SPEC.name, "", TEXT + CONTENTS, len(TEXT)),
    ),
    "numbers in JSON": lambda: (JsonCodec(), read_request(SPEC.name, "", IN_JSON, None)),
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_the_same_request(form: str) -> None:
    codec, request = FORMS[form]()
    assert codec.header(request) == RequestHeader(SPEC.name, "", "7")
    found = codec.decode(request, IO, RequestTensors(None))
    check_same(found, IO.reader.read_message(MESSAGE))
    sizes = {"binary tensors": len(TEXT + CONTENTS), "numbers in JSON": len(IN_JSON)}
    assert codec.size_bytes(request) == (sizes[form] if form in sizes else len(request))


def infer_scores(answer: bytes) -> dict[str, list[float]]:
    response = service_pb2.ModelInferResponse.FromString(answer)
    assert (response.model_name, response.model_version, response.id) == ("small", "3", "7")
    contents = zip(response.outputs, response.raw_output_contents, strict=True)
    return {output.name: np.frombuffer(raw, "<f4").tolist() for output, raw in contents}


def predict_scores(answer: bytes) -> dict[str, list[float]]:
    response = predictor_pb2.PredictResponse.FromString(answer)
    assert (response.model, response.version, response.request_id) == ("small", 3, "7")
    return {output.name: list(output.values) for output in response.outputs}


def infer_tables(answer: bytes) -> str:
    response = service_pb2.ModelInferResponse.FromString(answer)
    if not response.parameters:
        return ""
    assert list(response.parameters) == ["sharded_infer_default_tables"]
    return str(response.parameters["sharded_infer_default_tables"].string_param)


def predict_tables(answer: bytes) -> str:
    return ",".join(predictor_pb2.PredictResponse.FromString(answer).default_tables)


def http_tables(answer: Any) -> str:
    document = json.loads(infer_answer(answer, OutputForms(False, {})).body)
    parameters = document.get("parameters", {"sharded_infer_default_tables": ""})
    assert list(parameters) == ["sharded_infer_default_tables"]
    return str(parameters["sharded_infer_default_tables"])


@pytest.mark.parametrize("tables", [(), ("item",), ("item", "user.long")])
@pytest.mark.parametrize(
    ("form", "read"),
    [
        ("ModelInferRequest", infer_tables),
        ("PredictRequest", predict_tables),
        ("binary tensors", http_tables),
    ],
)
def test_answers_name_the_tables_whose_default_rows_were_taken(
    form: str, read: Callable[[Any], str], tables: tuple[str, ...]
) -> None:
    codec, request = FORMS[form]()
    scores = [np.array([0.5, -1.0], np.float32)]
    scored = Scored(codec.header(request), (0,), scores, (0.0, 0.0, 0.0, 0.0), tables)
    assert read(codec.encode(scored, IO, RequestTensors(None))) == ",".join(tables)


def infer_unknown(answer: bytes) -> dict[str, int]:
    response = service_pb2.ModelInferResponse.FromString(answer)
    return {name: value.int64_param for name, value in response.parameters.items()}


def predict_unknown(answer: bytes) -> dict[str, int]:
    found = predictor_pb2.PredictResponse.FromString(answer).unknown_ids
    return {f"unknown_ids.{table}": count for table, count in found.items()}


def http_unknown(answer: Any) -> dict[str, int]:
    document = json.loads(infer_answer(answer, OutputForms(False, {})).body)
    return dict(document.get("parameters", {}))


@pytest.mark.parametrize("unknown", [(), (("item", 3), ("user.long", 2**40))])
@pytest.mark.parametrize(
    ("form", "read"),
    [
        ("ModelInferRequest", infer_unknown),
        ("PredictRequest", predict_unknown),
        ("binary tensors", http_unknown),
    ],
)
def test_answers_say_how_many_ids_a_table_does_not_know(
    form: str, read: Callable[[Any], dict[str, int]], unknown: tuple[tuple[str, int], ...]
) -> None:
    codec, request = FORMS[form]()
    scores = [np.array([0.5, -1.0], np.float32)]
    scored = Scored(codec.header(request), (0,), scores, (0.0, 0.0, 0.0, 0.0), (), unknown)
    wanted = {f"unknown_ids.{table}": count for table, count in unknown}
    assert read(codec.encode(scored, IO, RequestTensors(None))) == wanted


def http_scores(answer: Any) -> dict[str, list[float]]:
    document = json.loads(infer_answer(answer, OutputForms(False, {})).body)
    assert (document["model_name"], document["model_version"]) == ("small", "3")
    assert document["id"] == "7"
    return {output["name"]: output["data"] for output in document["outputs"]}


@pytest.mark.parametrize(
    ("form", "read"),
    [
        ("ModelInferRequest", infer_scores),
        ("PredictRequest", predict_scores),
        ("binary tensors", http_scores),
    ],
)
def test_answers_keep_scores_that_the_batch_overwrites(
    form: str, read: Callable[[Any], dict[str, list[float]]]
) -> None:
    codec, request = FORMS[form]()
    scores = [np.array([0.5, -1.0], np.float32), np.array([[1, 2], [3, 4]], np.float32)]
    scored = Scored(codec.header(request), (0, 1), scores, (0.0, 0.0, 0.0, 0.0))
    answer = codec.encode(scored, IO, RequestTensors(None))
    for array in scores:
        array.fill(np.nan)
    assert read(answer) == {"score": [0.5, -1.0], "labels": [1.0, 2.0, 3.0, 4.0]}
