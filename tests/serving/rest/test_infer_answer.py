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
