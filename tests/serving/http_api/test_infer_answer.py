import json
import math

import numpy as np

from serving.http_api.infer_answer import InferScores, ScoredOutput, infer_answer
from serving.http_api.infer_request import OutputForms

SCORES = np.array([0.1, math.nan, -math.inf, 2.0], "<f4")


ANSWER = InferScores("m", "2", "", [ScoredOutput(name, (4,), SCORES.tobytes()) for name in "ab"])


def test_scores_that_json_has_no_numbers_for_are_null() -> None:
    answer = infer_answer(ANSWER, OutputForms(False, {}))
    data = json.loads(answer.body)["outputs"][0]["data"]
    assert data == [float(SCORES[0]), None, None, 2.0]
    assert answer.kind == "application/json"


def test_binary_outputs_follow_the_json_in_their_order() -> None:
    answer = infer_answer(ANSWER, OutputForms(True, {"a": False}))
    length = int(dict(answer.headers)["Inference-Header-Content-Length"])
    first, second = json.loads(answer.body[:length])["outputs"]
    assert "data" in first and "data" not in second
    assert second["parameters"] == {"binary_data_size": 16}
    assert answer.body[length:] == SCORES.tobytes()


def test_only_binary_outputs_have_parameters() -> None:
    placed = ScoredOutput("a", (4,), None)
    scores = ANSWER._replace(outputs=[placed, ANSWER.outputs[1]])
    for binary in (False, True):
        answer = infer_answer(scores, OutputForms(binary, {}))
        length = dict(answer.headers).get("Inference-Header-Content-Length")
        first, second = json.loads(answer.body[: length and int(length)])["outputs"]
        # Where it was put, the client has said itself. Triton sends none here.
        assert set(first) == {"name", "datatype", "shape"}
        assert second.get("parameters") == ({"binary_data_size": 16} if binary else None)
        assert ("data" in second) is not binary
