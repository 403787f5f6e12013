"""Responses as clients read them."""

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from serving.response_encoder import ResponseEncoder

ENCODER = ResponseEncoder("ranker", 3, ("score", "labels"))
SCORE = np.array([0.5, -1.0, np.inf], np.float32)
LABELS = np.arange(6, dtype=np.float32).reshape(3, 2)


@pytest.mark.parametrize("requested", [(0,), (1,), (0, 1), ()])
@pytest.mark.parametrize("request_id", ["", "17", "é"])
def test_a_response_has_each_requested_output_and_its_bytes(
    requested: tuple[int, ...], request_id: str
) -> None:
    scores = [(SCORE, LABELS)[position] for position in requested]
    message = ENCODER.encode(request_id, requested, scores)
    response = service_pb2.ModelInferResponse.FromString(message)
    assert (response.model_name, response.model_version) == ("ranker", "3")
    assert response.id == request_id
    assert [o.name for o in response.outputs] == [("score", "labels")[p] for p in requested]
    assert [o.datatype for o in response.outputs] == ["FP32"] * len(requested)
    assert [list(o.shape) for o in response.outputs] == [list(s.shape) for s in scores]
    assert list(response.raw_output_contents) == [s.astype("<f4").tobytes() for s in scores]
