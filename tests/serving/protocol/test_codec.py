import json
from collections.abc import Callable
from typing import Any, NamedTuple

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
from serving.protocol.request_tensors import RequestTensors
from serving.protocol.version_io import VersionIO
from sharded_infer.client.request_message import request_message
from sharded_infer.v1 import predictor_pb2
from tests.support.requests_by_chance import MAX_BATCH, SPEC, Arrays, serialized

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
ID = "größe-7"
MESSAGE = serialized(INPUTS, id=ID)
_, TEXT, CONTENTS = binary_body(MESSAGE)
TEXT = TEXT.replace(b"{", b'{"id":"%s",' % ID.encode(), 1)


class Answer(NamedTuple):
    scores: dict[str, list[float]]
    default_tables: list[str]
    unknown_ids: dict[str, int]


def read_parameters(parameters: dict[str, Any]) -> tuple[list[str], dict[str, int]]:
    tables = parameters.pop("sharded_infer_default_tables", "")
    unknown = {name.removeprefix("unknown_ids."): count for name, count in parameters.items()}
    return tables.split(",") if tables else [], unknown


def read_infer(answer: bytes) -> Answer:
    response = service_pb2.ModelInferResponse.FromString(answer)
    assert (response.model_name, response.model_version, response.id) == ("small", "3", ID)
    shapes = [(output.datatype, list(output.shape)) for output in response.outputs]
    assert shapes == [("FP32", [2]), ("FP32", [2, 2])]
    contents = zip(response.outputs, response.raw_output_contents, strict=True)
    scores = {output.name: np.frombuffer(raw, "<f4").tolist() for output, raw in contents}
    parameters = {
        name: one.string_param or one.int64_param for name, one in response.parameters.items()
    }
    return Answer(scores, *read_parameters(parameters))


def read_predict(answer: bytes) -> Answer:
    response = predictor_pb2.PredictResponse.FromString(answer)
    assert (response.model, response.version, response.request_id) == ("small", 3, ID)
    scores = {output.name: list(output.values) for output in response.outputs}
    return Answer(scores, list(response.default_tables), dict(response.unknown_ids))


def read_http(answer: Any) -> Answer:
    document = json.loads(infer_answer(answer, OutputForms(False, {})).body)
    assert (document["model_name"], document["model_version"]) == ("small", "3")
    assert document["id"] == ID
    scores = {output["name"]: output["data"] for output in document["outputs"]}
    return Answer(scores, *read_parameters(document.get("parameters", {})))


@pytest.mark.parametrize(
    ("form", "read"),
    [
        ((MESSAGE_CODECS[PredictMethod.MODEL_INFER], MESSAGE), read_infer),
        (
            (
                MESSAGE_CODECS[PredictMethod.PREDICT],
                request_message(SPEC.name, candidates=INPUTS, request_id=ID),
            ),
            read_predict,
        ),
        ((JsonCodec(), read_request(SPEC.name, "", TEXT + CONTENTS, len(TEXT))), read_http),
    ],
    ids=["ModelInferRequest", "PredictRequest", "binary tensors"],
)
def test_answers_keep_scores_that_the_batch_overwrites_and_name_default_rows_and_unknown_ids(
    form: tuple[Codec[Any, Any], Any], read: Callable[[Any], Answer]
) -> None:
    codec, request = form
    for tables, unknown in (
        ([], {}),
        (["item"], {}),
        (["item", "user.long"], {"item": 3, "user.long": 2**40}),
    ):
        scores = [np.array([0.5, -1.0], np.float32), np.array([[1, 2], [3, 4]], np.float32)]
        scored = Scored(
            codec.header(request), (0, 1), scores, (0.0, 0.0, 0.0, 0.0), tuple(tables),
            tuple(unknown.items()),
        )  # fmt: skip
        answer = codec.encode(scored, IO, RequestTensors(None))
        for array in scores:
            array.fill(np.nan)
        wanted = {"score": [0.5, -1.0], "labels": [1.0, 2.0, 3.0, 4.0]}
        assert read(answer) == Answer(wanted, tables, unknown)
