"""Responses as HTTP answers."""

import json
import math

import numpy as np
from tritonclient.grpc import service_pb2

from serving.rest.infer_answer import infer_answer
from serving.rest.infer_request import OutputForms

SCORES = np.array([0.1, math.nan, -math.inf, 2.0], "<f4")


def message() -> bytes:
    response = service_pb2.ModelInferResponse(model_name="m", model_version="2")
    for name in ("a", "b"):
        response.outputs.add(name=name, datatype="FP32", shape=[4])
        response.raw_output_contents.append(SCORES.tobytes())
    return bytes(response.SerializeToString())


def test_scores_that_json_has_no_numbers_for_are_null() -> None:
    answer = infer_answer(message(), OutputForms(False, {}))
    data = json.loads(answer.body)["outputs"][0]["data"]
    assert data == [float(SCORES[0]), None, None, 2.0]
    assert answer.kind == "application/json"


def test_binary_outputs_follow_the_json_in_their_order() -> None:
    answer = infer_answer(message(), OutputForms(True, {"a": False}))
    length = int(dict(answer.headers)["Inference-Header-Content-Length"])
    first, second = json.loads(answer.body[:length])["outputs"]
    assert "data" in first and "data" not in second
    assert second["parameters"] == {"binary_data_size": 16}
    assert answer.body[length:] == SCORES.tobytes()


def test_only_binary_outputs_have_parameters() -> None:
    response = service_pb2.ModelInferResponse.FromString(message())
    place = response.outputs[0].parameters
    place["shared_memory_region"].string_param = "r"
    place["shared_memory_byte_size"].int64_param = 16
    response.raw_output_contents[0] = b""
    for binary in (False, True):
        answer = infer_answer(response.SerializeToString(), OutputForms(binary, {}))
        length = dict(answer.headers).get("Inference-Header-Content-Length")
        first, second = json.loads(answer.body[: length and int(length)])["outputs"]
        # Where it was put, the client has said itself. Triton sends none here.
        assert set(first) == {"name", "datatype", "shape"}
        assert second.get("parameters") == ({"binary_data_size": 16} if binary else None)
        assert ("data" in second) is not binary
